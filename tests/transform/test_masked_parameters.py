"""Under optax.masked and multi_transform: the block of F that belongs to what is left in place."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from problems_for_tests import random_problem
from vpng import (
    Dense,
    InputError,
    LevenbergMarquardt,
    Parameters,
    Predictive,
    Scheduled,
    scale_by_natural_gradient,
    scale_by_vpng,
)

METRIC = Predictive(num_particles=2)
KEY = 3


def setting():
    problem, parameters, batch = random_problem("local", "bernoulli", seed=1)
    gradient = jax.tree.map(lambda leaf: np.cos(3 * np.asarray(leaf)), parameters)
    return problem, parameters, batch, gradient


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@cache
def dense_fisher(problem):
    @jax.jit
    def compute(parameters, batch):
        key = jax.random.split(jax.random.key(KEY))[0]
        return METRIC.operator(problem, parameters, batch, key).to_dense()

    return compute


def block_solve(problem, parameters, batch, gradient, kept, damping):
    """(F_kept + mu I)^-1 g_kept from the full matrix, by NumPy."""
    fisher = np.asarray(dense_fisher(problem)(parameters, batch), np.float64)
    index = np.flatnonzero(flat(kept))
    block = fisher[np.ix_(index, index)] + damping * np.eye(len(index))
    return np.linalg.solve(block, flat(gradient)[index]), index


def mask_of(parameters):
    """Some variational and some model parameters."""
    variational = {"bias": True, "log_scale": False, "weights": True}
    return Parameters(variational, {"inputs": False, "latents": True, "shift": False})


def as_array(mask, parameters):
    return jax.tree.map(lambda keep, leaf: np.full_like(leaf, keep), mask, parameters)


def test_masked_preconditions_with_the_block():
    problem, parameters, batch, gradient = setting()
    mask = mask_of(parameters)
    transformation = optax.masked(
        scale_by_vpng(problem, metric=METRIC, curvature=Dense(), damping=0.2), mask
    )
    state = transformation.init(parameters)
    updates, _ = jax.jit(
        lambda g, s, p: transformation.update(
            g, s, p, batch=batch, rng_key=jax.random.key(KEY), full_params=p
        )
    )(gradient, state, parameters)
    kept = as_array(mask, parameters)
    wanted, index = block_solve(problem, parameters, batch, gradient, kept, 0.2)
    np.testing.assert_allclose(flat(updates)[index], wanted, rtol=2e-3, atol=1e-4)
    others = np.setdiff1d(np.arange(len(flat(gradient))), index)
    np.testing.assert_array_equal(flat(updates)[others], flat(gradient)[others])


def test_masked_without_all_parameters_explains_itself():
    problem, parameters, batch, gradient = setting()
    transformation = optax.masked(scale_by_vpng(problem), mask_of(parameters))
    state = transformation.init(parameters)
    with pytest.raises(
        InputError, match=r"full_params: expected all parameters.*full_params=params"
    ):
        transformation.update(gradient, state, parameters, batch=batch, rng_key=jax.random.key(0))


@pytest.mark.parametrize("damping", [0.1, LevenbergMarquardt()], ids=["constant", "adaptive"])
def test_multi_transform(damping):
    problem, parameters, batch, gradient = setting()
    transformation = optax.multi_transform(
        {
            "curved": scale_by_vpng(problem, metric=METRIC, damping=damping),
            "plain": optax.scale(2.0),
        },
        Parameters("curved", "plain"),
    )
    state = transformation.init(parameters)
    update = jax.jit(
        lambda g, s, p: transformation.update(
            g, s, p, batch=batch, rng_key=jax.random.key(KEY), full_params=p
        )
    )
    updates, state = update(gradient, state, parameters)
    updates, state = update(gradient, state, parameters)
    for got, plain in zip(
        jax.tree.leaves(updates.model), jax.tree.leaves(gradient.model), strict=True
    ):
        np.testing.assert_allclose(got, 2 * plain)
    for got in jax.tree.leaves(updates.variational):
        assert np.isfinite(np.asarray(got)).all()
    if damping == 0.1:
        kept = Parameters(
            jax.tree.map(np.ones_like, parameters.variational),
            jax.tree.map(np.zeros_like, parameters.model),
        )
        wanted, _ = block_solve(problem, parameters, batch, gradient, kept, 0.1)
        np.testing.assert_allclose(flat(updates.variational), wanted, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("make", [scale_by_vpng, scale_by_natural_gradient])
def test_inject_hyperparams(make):
    """The damping becomes state, and may be changed there between steps."""
    problem, parameters, batch, gradient = setting()
    transformation = optax.inject_hyperparams(make)(problem, damping=0.1)
    state = transformation.init(parameters)
    assert float(state.hyperparams["damping"]) == pytest.approx(0.1)
    update = jax.jit(
        lambda g, s, p: transformation.update(g, s, p, batch=batch, rng_key=jax.random.key(KEY))
    )
    first, state = update(gradient, state, parameters)
    reference = make(problem, damping=0.1)
    wanted, _ = jax.jit(
        lambda g, p: reference.update(
            g, reference.init(p), p, batch=batch, rng_key=jax.random.key(KEY)
        )
    )(gradient, parameters)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), first, wanted)
    state.hyperparams["damping"] = jnp.float32(1e4)
    second, _ = update(gradient, state, parameters)
    size = lambda tree: np.linalg.norm(flat(tree.variational))
    assert size(second) < 0.01 * size(first)


def test_a_damping_schedule_is_followed():
    problem, parameters, batch, gradient = setting()
    rising = Scheduled(lambda step: jnp.where(step == 0, 0.1, 1e4))
    transformation = scale_by_vpng(problem, metric=METRIC, damping=rising)
    state = transformation.init(parameters)
    update = jax.jit(
        lambda g, s, p: transformation.update(g, s, p, batch=batch, rng_key=jax.random.key(KEY))
    )
    first, state = update(gradient, state, parameters)
    second, _ = update(gradient, state, parameters)
    assert np.linalg.norm(flat(second)) < 0.01 * np.linalg.norm(flat(first))
