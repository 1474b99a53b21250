"""Kronecker-factored curvature inside the optax transformations."""

from functools import cache

import jax
import numpy as np
import optax
import pytest

from vpng import ELBO, Predictive, Probed, Variational, scale_by_natural_gradient, scale_by_vpng
from vpng.kronecker import Kronecker, KroneckerTridiagonal, discover
from vpng.problems.autoencoder import mlp_vae

METRIC = Predictive(Probed(1), num_particles=1)


@cache
def _setup():
    generator = np.random.default_rng(1)
    pattern = generator.random((4, 12)) > 0.5
    flip = generator.random((60, 12)) < 0.05
    data = np.logical_xor(pattern[generator.integers(0, 4, 60)], flip).astype(np.float32)
    return mlp_vae(jax.random.key(0), jax.device_put(data), latent_dim=2, hidden=(8,))


def _train(setup, transformation, num_steps=60):
    optimiser = optax.chain(
        transformation, optax.scale_by_adam(), optax.scale_by_learning_rate(0.03)
    )
    objective = ELBO(num_particles=2)
    traces = []

    @jax.jit
    def step(parameters, state, key):
        traces.append(key)
        keys = jax.random.split(key)
        estimate, gradient = objective.estimate_and_gradient(
            keys[0], setup.problem, parameters, setup.data
        )
        updates, state = optimiser.update(
            gradient, state, parameters, batch=setup.data, rng_key=keys[1]
        )
        return optax.apply_updates(parameters, updates), state, estimate.loss

    parameters, state = setup.parameters, jax.jit(optimiser.init)(setup.parameters)
    losses = []
    for key in jax.random.split(jax.random.key(7), num_steps):
        parameters, state, loss = step(parameters, state, key)
        losses.append(float(loss))
    assert len(traces) == 1
    return losses


@pytest.mark.parametrize("curvature", [Kronecker, KroneckerTridiagonal])
def test_training_an_autoencoder_lowers_the_loss(curvature):
    setup = _setup()
    structure = discover(setup.problem, setup.parameters, setup.data, METRIC)
    solver = curvature(structure, statistics_period=2, inverse_period=4)
    transformation = scale_by_vpng(setup.problem, metric=METRIC, curvature=solver, damping=0.05)
    losses = _train(setup, transformation)
    assert np.mean(losses[-5:]) < 0.75 * losses[0]


def test_classic_natural_gradient_uses_the_encoder_as_a_chain():
    setup = _setup()
    metric = Variational(Probed(1))
    structure = discover(setup.problem, setup.parameters, setup.data, metric)
    assert [layer.weight for layer in structure.layers] == [
        "variational[0].kernel",
        "variational[1].kernel",
    ]
    transformation = scale_by_natural_gradient(
        setup.problem, metric=metric, curvature=KroneckerTridiagonal(structure), damping=0.05
    )
    losses = _train(setup, transformation)
    assert np.mean(losses[-5:]) < 0.8 * losses[0]


def test_a_part_of_the_parameters_under_a_mask():
    setup = _setup()
    structure = discover(setup.problem, setup.parameters, setup.data, METRIC)
    inner = scale_by_vpng(
        setup.problem, metric=METRIC, curvature=KroneckerTridiagonal(structure), damping=0.05
    )
    mask = setup.parameters._replace(variational=False, model=True)
    transformation = optax.masked(inner, mask)
    gradient = jax.tree.map(np.ones_like, setup.parameters)

    @jax.jit
    def update(gradient, params):
        state, key = transformation.init(params), jax.random.key(0)
        return transformation.update(
            gradient, state, params, batch=setup.data, rng_key=key, full_params=params
        )[0]

    updates = update(gradient, setup.parameters)
    assert (np.asarray(updates.variational[0].kernel) == 1.0).all()
    assert not np.allclose(updates.model[0].kernel, 1.0)
