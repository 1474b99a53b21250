"""Under optax.masked and multi_transform: the block of F that belongs to what is left in place."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from problems_for_tests import random_problem
from vpng import (
    ELBO,
    Dense,
    Hessian,
    InputError,
    LevenbergMarquardt,
    Parameters,
    Predictive,
    Scheduled,
    Variational,
    optimizers,
    precondition,
    scale_by_hessian_free,
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


def assert_carried(transformation, parameters, batch, gradient):
    """Updates like the gradient, and a state that a loop can carry; nothing is compiled."""
    state = transformation.init(parameters)
    updates, new_state = jax.eval_shape(
        lambda g, s, p: transformation.update(
            g, s, p, batch=batch, rng_key=jax.random.key(KEY), full_params=p
        ),
        gradient,
        state,
        parameters,
    )
    assert signature(updates) == signature(gradient)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    assert signature(new_state) == signature(state)
    return state


def signature(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


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


def test_hessian_free_solves_with_the_block():
    """The oracle: the whole Hessian of the loss, cut and solved by NumPy."""
    problem, parameters, batch, gradient = setting()
    objective, mu, key = ELBO(2), 5.0, jax.random.key(KEY)
    direction = scale_by_hessian_free(
        problem, objective=objective, product=Hessian(), damping=mu, max_steps=50, rtol=1e-6
    )
    mask = mask_of(parameters)
    transformation = optax.masked(direction, mask)
    flat_point, unravel = ravel_pytree(parameters)

    @jax.jit
    def both(g, point):
        params = unravel(point)
        state = transformation.init(params)
        updates, _ = transformation.update(
            g, state, params, batch=batch, rng_key=key, full_params=params
        )
        loss = lambda v: objective.estimate(key, problem, unravel(v), batch).loss
        return updates, jax.hessian(loss)(point)

    updates, hessian = both(gradient, flat_point)
    index = np.flatnonzero(flat(as_array(mask, parameters)))
    block = np.asarray(hessian, np.float64)[np.ix_(index, index)] + mu * np.eye(len(index))
    assert np.linalg.eigvalsh(block).min() > 0
    wanted = np.linalg.solve(block, flat(gradient)[index])
    np.testing.assert_allclose(flat(updates)[index], wanted, rtol=1e-3, atol=1e-4)
    others = np.setdiff1d(np.arange(len(flat(gradient))), index)
    np.testing.assert_array_equal(flat(updates)[others], flat(gradient)[others])


MAKERS = {
    "vpng": scale_by_vpng,
    "natural gradient": scale_by_natural_gradient,
    "hessian free": scale_by_hessian_free,
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("how", ["masked", "multi_transform"])
def test_structures_are_kept_under_masks(name, how):
    problem, parameters, batch, gradient = setting()
    direction = MAKERS[name](problem)
    if how == "masked":
        transformation = optax.masked(direction, mask_of(parameters))
    else:
        rules = {"curved": direction, "plain": optax.scale(2.0)}
        transformation = optax.multi_transform(rules, Parameters("curved", "plain"))
    assert_carried(transformation, parameters, batch, gradient)


def assert_passes(transformation, parameters, batch, gradient):
    """The gradient itself, and a state like the one before but for the count of its steps."""
    state = transformation.init(parameters)
    updates, new_state = transformation.update(
        gradient, state, parameters, batch=batch, rng_key=jax.random.key(KEY)
    )
    jax.tree.map(np.testing.assert_array_equal, updates, gradient)
    assert jax.tree.structure(updates) == jax.tree.structure(gradient)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    assert signature(new_state) == signature(state)


@pytest.mark.parametrize("name", MAKERS)
def test_nothing_is_done_where_everything_is_masked(name):
    problem, parameters, batch, gradient = setting()
    mask = jax.tree.map(lambda _: False, parameters)
    assert_passes(optax.masked(MAKERS[name](problem), mask), parameters, batch, gradient)


@pytest.mark.parametrize("damping", [0.1, LevenbergMarquardt()], ids=["constant", "adaptive"])
def test_the_natural_gradient_of_no_variational_parameters_is_the_gradient(damping):
    problem, parameters, batch, gradient = setting()
    point, gradient = (tree._replace(variational=()) for tree in (parameters, gradient))
    rule = scale_by_natural_gradient(problem, damping=damping)
    assert_passes(rule, point, batch, gradient)


@pytest.mark.parametrize("name", MAKERS)
def test_masked_without_all_parameters_explains_itself(name):
    problem, parameters, batch, gradient = setting()
    transformation = optax.masked(MAKERS[name](problem), mask_of(parameters))
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


@pytest.mark.parametrize("name", MAKERS)
def test_inject_hyperparams(name):
    """The damping becomes state, and may be changed there between steps."""
    problem, parameters, batch, gradient = setting()
    make = MAKERS[name]
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


@pytest.mark.parametrize(
    "make", [optimizers.vpng, optimizers.natural_gradient, optimizers.hessian_free]
)
def test_inject_hyperparams_of_ready_optimizers(make):
    problem, parameters, batch, gradient = setting()
    decaying = optax.exponential_decay(0.1, 30, 0.5)
    optimizer = optax.inject_hyperparams(make)(problem, decaying)
    state = assert_carried(optimizer, parameters, batch, gradient)
    assert {"learning_rate", "damping"} <= state.hyperparams.keys()


def test_inject_hyperparams_of_a_preconditioner():
    problem, parameters, batch, gradient = setting()
    transformation = optax.inject_hyperparams(precondition)(problem, Variational(), damping=0.1)
    state = assert_carried(transformation, parameters, batch, gradient)
    assert state.hyperparams.keys() == {"damping"}


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
