"""Rules in the eigenbasis of the factors: the mathematics of turning, and use in training."""

import equinox as eqx
import jax
import numpy as np
import optax
import pytest

from vpng import ELBO, InputError, Predictive, Probed, optimizers
from vpng.kronecker import GradientFactors, InputsAndOutputs, discover, in_eigenbasis
from vpng.kronecker.basis import Basis, leading_eigenvectors
from vpng.kronecker.structure import by_path
from vpng.kronecker.turned_state import turned_state
from vpng.problems import mlp_vae
from vpng.training import fit, iterate_averaged

METRIC = Predictive(Probed(1), num_particles=1)


@pytest.fixture(scope="module")
def setup():
    data = jax.device_put((np.random.default_rng(0).random((64, 12)) < 0.3).astype(np.float32))
    return mlp_vae(jax.random.key(1), data, latent_dim=3, hidden=(8,))


@pytest.fixture(scope="module")
def structure(setup):
    return discover(setup.problem, setup.parameters, setup.data[:4], METRIC)


def orthogonal(seed, size):
    normal = np.random.default_rng(seed).normal(size=(size, size))
    return np.linalg.qr(normal)[0].astype(np.float32)


@eqx.filter_jit
def gradient_of(setup, key):
    return ELBO(2).estimate_and_gradient(key, setup.problem, setup.parameters, setup.data)[1]


def test_a_linear_rule_does_not_see_the_basis(setup, structure):
    """With no truncation Q (rule) Q^T is the identity for a rule that commutes with rotations."""
    transform = in_eigenbasis(setup.problem, structure, optax.scale(2.0), statistics_period=1)
    state = transform.init(setup.parameters)
    update = jax.jit(transform.update)
    gradient = gradient_of(setup, jax.random.key(0))
    for step in range(3):
        updates, state = update(
            gradient, state, setup.parameters, batch=setup.data, rng_key=jax.random.key(step)
        )
        for got, want in zip(jax.tree.leaves(updates), jax.tree.leaves(gradient), strict=True):
            np.testing.assert_allclose(got, 2.0 * np.asarray(want), atol=2e-5)


def test_momentum_turns_with_the_basis(setup, structure):
    """A trace commutes with rotations only if its memory is turned whenever the basis is."""
    turning = in_eigenbasis(
        setup.problem, structure, optax.trace(0.9), statistics_period=1, patience=0.0
    )
    plain = optax.trace(0.9)
    state, plain_state = turning.init(setup.parameters), plain.init(setup.parameters)
    update, plain_update = jax.jit(turning.update), jax.jit(plain.update)
    for step in range(4):
        gradient = gradient_of(setup, jax.random.key(step))
        updates, state = update(
            gradient, state, setup.parameters, batch=setup.data, rng_key=jax.random.key(step)
        )
        expected, plain_state = plain_update(gradient, plain_state)
        for got, want in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(got, want, atol=1e-4)


def test_second_moments_turn_with_the_squares():
    """For independent coordinates, var((R x)_i) = sum_j R_ij^2 var(x_j)."""
    old, new = orthogonal(0, 5), orthogonal(1, 5)
    out_old, out_new = orthogonal(2, 4), orthogonal(3, 4)
    moments = np.random.default_rng(4).random((5, 4), np.float32)
    state = optax.ScaleByAdamState(np.zeros((), np.int32), {"w": moments}, {"w": moments})
    before, after = {"w": Basis(old, out_old)}, {"w": Basis(new, out_new)}
    (turned,) = jax.jit(turned_state)((state,), before, after)
    rotation, out_rotation = new.T @ old, out_old.T @ out_new
    np.testing.assert_allclose(turned.mu["w"], rotation @ moments @ out_rotation, rtol=1e-4)
    squares = rotation**2 @ moments @ out_rotation**2
    np.testing.assert_allclose(turned.nu["w"], squares, rtol=1e-4)
    np.testing.assert_allclose(np.sum(turned.nu["w"]), moments.sum(), rtol=1e-5)


def test_leading_eigenvectors_are_ordered_and_orthonormal():
    root = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    vectors = np.asarray(leading_eigenvectors(root @ root.T, 4))
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(4), atol=1e-5)
    sizes = np.linalg.norm(root.T @ vectors, axis=0)
    assert (np.diff(sizes) < 0).all()


@pytest.fixture
def calibrated(setup, structure):
    """Five frozen directions of the data, and nothing else done to the gradient."""
    return in_eigenbasis(
        setup.problem,
        structure,
        optax.identity(),
        calibration=setup.data,
        parameters=setup.parameters,
        max_rank=5,
    )


def test_calibrated_inputs_span_the_data(setup, structure, calibrated):
    """The frozen basis of the first layer is that of E[(x, 1) (x, 1)^T] over the data."""
    first = structure.layers[0]
    basis = np.asarray(calibrated.init(setup.parameters).bases[first.weight].inputs)
    homogeneous = np.append(setup.data, np.ones((64, 1)), axis=1)
    assert basis.shape == (13, 5)
    _, vectors = np.linalg.eigh(homogeneous.T @ homogeneous / 64)
    reference = vectors[:, -5:]
    np.testing.assert_allclose(basis @ basis.T, reference @ reference.T, atol=1e-4)


def test_a_compiled_update_holds_no_calibration_of_its_own(setup, structure, calibrated):
    """It turns into the frozen basis that the state brings: B B^T g with the identity as rule."""
    first, state = structure.layers[0], calibrated.init(setup.parameters)
    basis = orthogonal(0, 13)[:, :5]
    state = state._replace(bases={**state.bases, first.weight: Basis(basis, None)})
    gradient = gradient_of(setup, jax.random.key(0))
    updates, after = jax.jit(calibrated.update)(
        gradient, state, setup.parameters, batch=setup.data, rng_key=jax.random.key(0)
    )
    np.testing.assert_array_equal(after.bases[first.weight].inputs, basis)
    got, whole = (np.asarray(first.matrix(by_path(tree))) for tree in (updates, gradient))
    np.testing.assert_allclose(got, basis @ (basis.T @ whole), atol=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"sides": InputsAndOutputs()}, {"source": GradientFactors()}]
)
def test_training_lowers_the_loss(setup, options):
    optimizer = optimizers.network_vpng(
        setup.problem, setup.parameters, setup.data, batch_size=32, **options
    )
    result = fit(
        *setup[:3],
        optimizer,
        120,
        jax.random.key(0),
        objective=ELBO(1),
        batch_size=32,
        record_every=40,
        progress=False,
        readout=iterate_averaged,
    )
    losses = result.history.column("loss")
    assert losses[-1] < losses[0] - 0.2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))


def test_calibration_needs_parameters(setup, structure):
    with pytest.raises(InputError, match="parameters"):
        in_eigenbasis(setup.problem, structure, optax.identity(), calibration=setup.data)
