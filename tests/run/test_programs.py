"""Programs are found again by what they compute, and by nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import Trace_ELBO, autoguide

from vpng import Dense, Parameters, fit, optimizers
from vpng.numerics.derivatives import primitives
from vpng.numpyro import SVI
from vpng.problems import LinearLatent
from vpng.runtime.programs import compiled_program
from vpng.runtime.simplified import simplified

EVENT = "/jax/core/compile/backend_compile_duration"
KEY = jax.random.key(0)


@pytest.fixture
def compilations():
    """What was compiled since the list was last cleared."""
    found = []
    listen = lambda event, _, **about: found.append(about) if event == EVENT else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


def affine(matrix, shift):
    """A function that has captured one array of its own, and one that a function inside has."""
    inside = jax.jit(lambda x: x + shift)
    return lambda tree: {"x": inside(matrix @ tree["x"]), "nothing": None}


def test_other_arrays_of_the_same_shapes_are_arguments(compilations):
    matrices = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    argument, shift = {"x": jnp.ones(3)}, jnp.zeros(3)
    programs, counts = [], []
    for matrix in map(jnp.asarray, matrices):
        before = len(compilations)
        programs.append(compiled_program(affine(matrix, shift), argument))
        counts.append(len(compilations) - before)
    assert counts[1] == 0 < counts[0]
    for program, matrix in zip(programs, matrices, strict=True):
        found = program({"x": jnp.asarray([1.0, 2.0, 3.0])})
        np.testing.assert_allclose(found["x"], matrix @ [1.0, 2.0, 3.0], rtol=1e-6)
        assert found["nothing"] is None


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda tree: {"x": tree["x"] * 3.0}, id="number"),
        pytest.param(affine(jnp.eye(3), jnp.ones(3)), id="array inside"),
        pytest.param(lambda tree: {"x": jnp.sin(tree["x"])}, id="function"),
    ],
)
def test_another_computation_is_another_program(other):
    argument = {"x": jnp.asarray([1.0, 2.0, 3.0])}
    compiled_program(lambda tree: {"x": tree["x"] * 2.0}, argument)
    compiled_program(affine(jnp.eye(3), jnp.zeros(3)), argument)
    found = compiled_program(other, argument)(argument)
    np.testing.assert_allclose(found["x"], other(argument)["x"], rtol=1e-6)


def test_calls_back_into_python_are_never_shared():
    said = []

    def telling(word):
        def function(x):
            jax.debug.callback(lambda _: said.append(word), x)
            return x

        return compiled_program(function, jnp.ones(()))

    first, second = telling("first"), telling("second")
    jax.block_until_ready((second(jnp.ones(())), first(jnp.ones(()))))
    jax.effects_barrier()
    assert sorted(said) == ["first", "second"]


def test_a_value_that_a_function_reads_is_seen():
    setting = {"factor": 2.0}
    function = lambda x: setting["factor"] * x
    assert compiled_program(function, jnp.ones(()))(jnp.ones(())) == 2.0
    setting["factor"] = 3.0
    assert compiled_program(function, jnp.ones(()))(jnp.ones(())) == 3.0


def regression(covariates, targets):
    weights = numpyro.sample("w", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("data", covariates.shape[0]):
        numpyro.sample("y", dist.Normal(covariates @ weights, 0.5), obs=targets)


def arguments(seed):
    covariates = np.random.default_rng(seed).normal(size=(6, 2)).astype(np.float32)
    return jnp.asarray(covariates), jnp.asarray(covariates @ [1.0, -1.0])


def make_svi(rule):
    loss = Trace_ELBO(num_particles=2)
    guide = autoguide.AutoNormal(regression)
    if rule == "automatic":
        return SVI(regression, guide, loss=loss)
    return SVI(regression, guide, optax.adam(0.05), loss, curvature=Dense())


@pytest.mark.parametrize("rule", ["automatic", "optimizer"])
def test_another_run_compiles_nothing(rule, compilations):
    """Not with another key, another number of steps, other data, nor an SVI made anew."""
    run = lambda svi, seed, num_steps: svi.run(
        jax.random.key(seed), num_steps, *arguments(seed), progress_bar=False
    )
    svi = make_svi(rule)
    first = run(svi, 0, 30)
    # What is small and eager in NumPyro's `init` compiles at its second call too.
    run(svi, 0, 5)
    run(make_svi(rule), 0, 5)
    compilations.clear()
    second = run(svi, 1, 70)
    assert compilations == []
    again = run(make_svi(rule), 0, 30)
    assert compilations == []
    np.testing.assert_array_equal(first.losses, again.losses)
    assert len(second.losses) == 70
    assert not np.allclose(first.losses, second.losses[:30])


def test_another_fit_compiles_nothing(compilations):
    def fitted(seed, num_steps, record_every):
        data = jnp.asarray(np.random.default_rng(seed).normal(size=10), jnp.float32)
        return fit(
            LinearLatent(num_data=10),
            Parameters(jnp.asarray(0.1), jnp.asarray(0.5)),
            data,
            optimizers.vpng(LinearLatent(num_data=10), 0.05, rule=optax.scale_by_adam()),
            num_steps,
            jax.random.key(seed),
            batch_size=5,
            record_every=record_every,
            metrics={"size": lambda params, _: jnp.abs(params.model)},
            progress=False,
        )

    first = fitted(0, 20, 10)
    fitted(0, 5, 10)
    compilations.clear()
    fitted(1, 33, 8)
    again = fitted(0, 20, 10)
    assert compilations == []
    np.testing.assert_array_equal(first.history.step_losses, again.history.step_losses)


def test_a_first_run_is_four_programs_of_few_equations(compilations):
    """A start, the state, the steps, the result; nothing is compiled one operation at a time."""
    covariates = np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    covariates = jax.device_put(covariates)
    data = covariates, jax.device_put(np.ones(7, np.float32))
    key = jax.random.key(0)
    svi = make_svi("automatic")
    compilations.clear()
    state = svi.run(key, 5, *data, progress_bar=False).state
    assert len(compilations) <= 4
    step = jax.make_jaxpr(svi.update)(state, *data)
    count = lambda program: len(list(primitives(program.jaxpr)))
    assert count(simplified(step)) < 0.6 * count(step)
    assert count(simplified(step)) < 1400
