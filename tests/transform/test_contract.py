"""optax's own contract, for every transformation and curvature."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from problems_for_tests import random_problem
from vpng import (
    ELBO,
    ConjugateGradient,
    Dense,
    Diagonal,
    Dual,
    GaussNewton,
    Hessian,
    Identity,
    InputError,
    LeastSquares,
    LevenbergMarquardt,
    Outcome,
    Predictive,
    Variational,
    auto,
    scale_by_hessian_free,
    scale_by_natural_gradient,
    scale_by_vpng,
)

FEW = Predictive(num_particles=2)
CURVATURES = {
    "identity": Identity(),
    "diagonal": Diagonal(),
    "dense": Dense(),
    "least squares": LeastSquares(),
    "dual": Dual(),
    "conjugate gradient": ConjugateGradient(),
    "auto": auto(),
}
TRANSFORMATIONS = {
    **{
        f"vpng, {name}": lambda p, c=curvature: scale_by_vpng(
            p, metric=FEW, curvature=c, damping=0.1
        )
        for name, curvature in CURVATURES.items()
    },
    **{
        f"natural gradient, {name}": lambda p, c=curvature: scale_by_natural_gradient(
            p, curvature=c, damping=0.1
        )
        for name, curvature in CURVATURES.items()
    },
    "vpng, adaptive": lambda p: scale_by_vpng(
        p, metric=FEW, damping=LevenbergMarquardt(objective=ELBO(2))
    ),
    "vpng, sum": lambda p: scale_by_vpng(p, metric=FEW + Variational(), damping=0.1),
    "hessian free, Gauss-Newton": lambda p: scale_by_hessian_free(
        p, objective=ELBO(2), product=GaussNewton()
    ),
    "hessian free, Hessian": lambda p: scale_by_hessian_free(
        p, objective=ELBO(2), product=Hessian()
    ),
}
OBJECTIVE = ELBO(2)


def setting(dtype=None, kind="local"):
    problem, parameters, batch = random_problem(kind, "bernoulli", seed=1)
    if dtype is not None:
        parameters, batch["inputs"] = jax.tree.map(
            lambda leaf: np.asarray(leaf, dtype), (parameters, batch["inputs"])
        )
    return problem, parameters, batch


def signature(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)


class Compiled(NamedTuple):
    """A transformation with its compiled update, and a note of every time that was traced."""

    transformation: optax.GradientTransformationExtraArgs
    update: Callable
    traces: list


@cache
def compiled(name):
    transformation, traces = TRANSFORMATIONS[name](setting()[0]), []

    @jax.jit
    def update(gradient, state, parameters, batch, key):
        traces.append(1)
        return transformation.update(
            gradient, state, parameters, batch=batch, rng_key=key, full_params=parameters, unknown=3
        )

    return Compiled(transformation, update, traces)


def flat(tree):
    return np.concatenate([np.ravel(leaf).astype(np.float64) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_contract(name):
    """Compiles once, keeps dtypes, shapes and structures, swallows unknown extras, descends.

    And a gradient that is not finite gives no update and says so.
    """
    _, parameters, batch = setting()
    transformation, update, traces = compiled(name)
    gradient = jax.tree.map(lambda leaf: np.cos(3 * np.asarray(leaf)), parameters)
    state = transformation.init(parameters)
    updates, new_state = update(gradient, state, parameters, batch, jax.random.key(0))
    assert jax.tree.structure(updates) == jax.tree.structure(parameters)
    assert signature(updates) == signature(parameters)
    assert jax.tree.structure(new_state) == jax.tree.structure(state)
    assert signature(new_state) == signature(state)
    assert int(new_state.step) == 1
    assert bool(new_state.info.outcome != Outcome.not_finite)
    assert flat(updates) @ flat(gradient) > 0  # minus the update goes downhill

    moved = jax.tree.map(lambda p, u: np.asarray(p) - 0.01 * np.asarray(u), parameters, updates)
    broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), parameters)
    updates, new_state = update(broken, new_state, moved, batch, jax.random.key(1))
    assert len(traces) == 1
    assert bool(new_state.info.outcome == Outcome.not_finite)
    # What the natural gradient does not precondition passes through.
    stopped = updates.variational if name.startswith("natural") else updates
    for leaf in jax.tree.leaves(stopped):
        np.testing.assert_array_equal(leaf, 0.0)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("vpng, conjugate gradient", jnp.float32),
        ("vpng, adaptive", jnp.float64),
        ("hessian free, Gauss-Newton", jnp.float32),
    ],
)
def test_dtype_is_kept_in_either_precision(name, dtype):
    assert_dtype_is_kept(name, dtype, *setting(dtype))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_dtype_is_kept_where_the_data_are_more_precise(name):
    """On the kind of latents for which the metric itself takes the precision of the data."""
    kind = "local" if name.startswith("natural") else "global"
    problem, parameters, batch = setting(jnp.float32, kind)
    batch["inputs"] = np.asarray(batch["inputs"], np.float64)
    assert_dtype_is_kept(name, jnp.float32, problem, parameters, batch)


def assert_dtype_is_kept(name, dtype, problem, parameters, batch):
    """Of the updates and of all that a loop carries; traced alone, nothing is compiled."""
    transformation = TRANSFORMATIONS[name](problem)
    state = transformation.init(parameters)
    updates, new_state = jax.eval_shape(
        lambda g, s, p: transformation.update(g, s, p, batch=batch, rng_key=jax.random.key(0)),
        parameters,
        state,
        parameters,
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype(dtype)}
    assert signature(new_state) == signature(state)


@pytest.mark.parametrize(
    "name", ["vpng, dense", "natural gradient, dense", "hessian free, Hessian"]
)
def test_missing_extras_are_type_errors(name):
    problem, parameters, batch = setting()
    transformation = TRANSFORMATIONS[name](problem)
    state = transformation.init(parameters)
    with pytest.raises(TypeError, match="rng_key"):
        transformation.update(parameters, state, parameters, batch=batch)
    with pytest.raises(TypeError, match="batch"):
        transformation.update(parameters, state, parameters, rng_key=jax.random.key(0))
    with pytest.raises(InputError, match="params: expected the current parameters, got None"):
        transformation.update(parameters, state, batch=batch, rng_key=jax.random.key(0))


def updated(name, gradient, parameters, batch, key):
    state = compiled(name).transformation.init(parameters)
    return compiled(name).update(gradient, state, parameters, batch, key)[0]


def test_natural_gradient_leaves_model_parameters_alone():
    _, parameters, batch = setting()
    gradient = jax.tree.map(np.ones_like, parameters)
    updates = updated("natural gradient, auto", gradient, parameters, batch, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, updates.model, gradient.model)
    assert not np.allclose(updates.variational["bias"], 1.0)


def test_vpng_is_the_damped_solve():
    problem, parameters, batch = setting()
    gradient = jax.tree.map(np.cos, parameters)
    updates = updated("vpng, dense", gradient, parameters, batch, jax.random.key(4))

    @jax.jit
    def fisher(parameters):
        metric_key, _ = jax.random.split(jax.random.key(4))
        return FEW.operator(problem, parameters, batch, metric_key).to_dense()

    matrix = np.asarray(fisher(parameters), np.float64)
    wanted = np.linalg.solve(matrix + 0.1 * np.eye(len(matrix)), flat(gradient))
    np.testing.assert_allclose(flat(updates), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("problem", lambda p: scale_by_vpng("model")),
        ("metric", lambda p: scale_by_vpng(p, metric="fisher")),
        ("curvature", lambda p: scale_by_vpng(p, curvature="dense")),
        ("damping", lambda p: scale_by_vpng(p, damping=-1.0)),
        ("damping", lambda p: scale_by_natural_gradient(p, damping=float("nan"))),
        ("damping", lambda p: scale_by_vpng(p, damping=lambda step: step - 1.0)),
        ("damping", lambda p: scale_by_hessian_free(p, damping=-1.0)),
        ("damping", lambda p: scale_by_hessian_free(p, damping=lambda step: -1.0)),
        ("max_steps", lambda p: scale_by_hessian_free(p, max_steps=0)),
        ("max_steps", lambda p: scale_by_hessian_free(p, max_steps=jnp.int32(0))),
        ("max_steps", lambda p: scale_by_hessian_free(p, max_steps=jnp.float32(2.0))),
        ("params", lambda p: scale_by_vpng(p).init({"a": jnp.ones(2)})),
    ],
)
def test_bad_arguments(argument, make):
    problem, _, _ = setting()
    with pytest.raises(InputError, match=rf"^{argument}: expected .*, got "):
        make(problem)


@pytest.mark.parametrize("make", [scale_by_vpng, scale_by_hessian_free])
def test_a_damping_that_falls_below_zero_gives_no_update(make):
    problem, parameters, batch = setting()
    transformation = make(problem, damping=lambda step: 0.1 - 0.2 * step)
    update = jax.jit(
        lambda state, p: transformation.update(p, state, p, batch=batch, rng_key=jax.random.key(0))
    )
    updates, state = update(transformation.init(parameters), parameters)
    assert bool(state.info.outcome != Outcome.not_finite)
    assert np.abs(flat(updates)).max() > 0
    updates, state = update(state, parameters)
    assert bool(state.info.outcome == Outcome.not_finite)
    np.testing.assert_array_equal(flat(updates), 0.0)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("make", [scale_by_vpng, scale_by_natural_gradient, scale_by_hessian_free])
def test_parameters_of_half_precision_are_refused_by_name(make, dtype):
    problem, parameters, _ = setting()
    parameters.variational["bias"] = jnp.zeros(2, dtype)
    wanted = r"^params.variational\['bias'\]: expected an array of float32 or float64, got dtype "
    with pytest.raises(InputError, match=wanted + jnp.dtype(dtype).name):
        make(problem).init(parameters)


CHAINS = {
    "adam": lambda d: optax.chain(d, optax.scale_by_adam(), optax.scale(-0.1)),
    "rms": lambda d: optax.chain(d, optax.scale_by_rms(), optax.scale(-0.05)),
    "clip": lambda d: optax.chain(optax.clip_by_global_norm(1.0), d, optax.scale(-0.05)),
    "schedule": lambda d: optax.chain(
        d, optax.scale_by_learning_rate(optax.exponential_decay(0.1, 30, 0.5))
    ),
}


@cache
def compiled_loss():
    problem, _, batch = setting()
    return jax.jit(lambda p: ELBO(200).estimate(jax.random.key(9), problem, p, batch))


@pytest.mark.parametrize(
    ("name", "chain"),
    [
        ("vpng, dense", "clip"),
        ("vpng, dense", "schedule"),
        ("natural gradient, auto", "adam"),
        ("hessian free, Gauss-Newton", "rms"),
    ],
)
def test_chains_with_optax_and_lowers_the_loss(name, chain):
    problem, parameters, batch = setting()
    optimizer = CHAINS[chain](TRANSFORMATIONS[name](problem))

    @jax.jit
    def run(parameters):
        def step(carry, key):
            parameters, state = carry
            _, gradient = OBJECTIVE.estimate_and_gradient(key, problem, parameters, batch)
            updates, state = optimizer.update(gradient, state, parameters, batch=batch, rng_key=key)
            return (optax.apply_updates(parameters, updates), state), None

        keys = jax.random.split(jax.random.key(0), 60)
        (end, _), _ = jax.lax.scan(step, (parameters, optimizer.init(parameters)), keys)
        return end

    before, after = compiled_loss()(parameters), compiled_loss()(run(parameters))
    margin = 3 * (float(before.standard_error) + float(after.standard_error))
    assert float(after.loss) < float(before.loss) - margin
