"""The loop: deterministic, chunked, one compilation, stops for the right reason."""

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vpng import ELBO, InputError, Parameters, Predictive, optimizers
from vpng.problems import GaussianMean, LinearLatent
from vpng.training import Batches, InMemory, Loop, StopReason, fit, init_state, make_step

NUM_DATA = 10


def setting():
    data = np.random.default_rng(0).normal(size=NUM_DATA).astype(np.float32)
    problem = LinearLatent(num_data=NUM_DATA)
    return problem, Parameters(*jax.device_put((np.float32(0.1), np.float32(0.5)))), data


def adam(rate=0.05):
    return optimizers.gradient(rate, rule=optax.scale_by_adam())


def fitted(num_steps, key=0, **options):
    key, options = jax.random.key(key), {"progress": False, **options}
    return fit(*setting(), adam(), num_steps, key, **options)


@cache
def loop(record_every, batch_size):
    """One for all tests that run it from the beginning."""
    return Loop(*setting(), adam(), record_every=record_every, batch_size=batch_size)


def run(num_steps, key=0, *, record_every=100, batch_size=None, **options):
    chosen, (_, parameters, _) = loop(record_every, batch_size), setting()
    begin = chosen.init(parameters, jax.random.key(key))
    return chosen.run(begin, num_steps, **{"progress": False, **options})


def same_bits(first, second):
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_same_key_gives_the_same_bits():
    first, second, other = run(25), fitted(25), run(25, key=1)
    same_bits(first.params, second.params)
    np.testing.assert_array_equal(first.history.step_losses, second.history.step_losses)
    assert float(first.params.model) != float(other.params.model)
    assert first.stop_reason is StopReason.STEPS


@pytest.mark.parametrize("batch_size", [None, 3])
def test_chunks_do_not_change_the_run(batch_size):
    whole = run(20, record_every=20, batch_size=batch_size)
    parts = run(20, record_every=7, batch_size=batch_size)
    same_bits(whole.params, parts.params)
    np.testing.assert_array_equal(whole.history.step_losses, parts.history.step_losses)


def test_the_last_chunk_may_be_shorter():
    result = run(20, record_every=7)
    np.testing.assert_array_equal(result.history.column("iteration"), [7, 14, 20])
    assert result.history.step_losses.shape == (20,)
    assert int(result.state.step) == 20
    for start, record in zip((0, 7, 14), result.history.records, strict=True):
        losses = result.history.step_losses[start : record.iteration]
        assert record.loss == pytest.approx(losses.mean(), rel=1e-6)
        error = losses.std(ddof=1) / np.sqrt(len(losses))
        assert record.standard_error == pytest.approx(error, rel=1e-4)


def test_a_run_can_go_on_where_it_stopped():
    whole = run(20, batch_size=3)
    half = run(9, batch_size=3)
    rest = fitted(11, 99, batch_size=3, init_from=half.state)
    same_bits(rest.params, whole.params)
    np.testing.assert_array_equal(rest.history.column("iteration"), [20])


def test_it_finds_the_optimum_of_the_toy():
    """VPNG with the damping near zero: steps of 0.3 Newton steps, up to noise."""
    covariance = np.array([[1.0, 0.9], [0.9, 1.0]], np.float32)
    data = (np.random.default_rng(1).normal(size=(20, 2)) + 1.0).astype(np.float32)
    problem = GaussianMean.create(covariance, 20, scale=0.05)
    optimizer = optimizers.vpng(problem, 0.3, damping=1e-6)
    result = fit(
        problem,
        problem.init(),
        data,
        optimizer,
        60,
        jax.random.key(0),
        record_every=60,
        progress=False,
    )
    # Noise: z = lambda + 0.05 eps, ten particles, so steps of 0.3 leave about 0.05 sqrt(0.3 / 17).
    np.testing.assert_allclose(result.params.variational, problem.optimum(data), atol=0.05)


def test_an_epoch_visits_every_datum_once():
    batches = Batches(12, 4)
    data = InMemory.create(np.arange(12.0))
    key, order = jax.random.key(0), batches.init()
    following, epochs = jax.jit(batches.next), []
    for epoch in range(3):
        seen = []
        for position in range(batches.per_epoch):
            batch, order = following(data, key, np.int32(3 * epoch + position), order)
            assert batch.shape == (4,)
            seen.extend(batch.tolist())
        assert sorted(seen) == list(range(12))
        epochs.append(tuple(seen))
    assert len(set(epochs)) == 3  # shuffled anew


def test_data_left_over_change_with_the_shuffle():
    batches = Batches(10, 4)
    data = InMemory.create(np.arange(10.0))
    order, seen = batches.init(), set()
    following = jax.jit(batches.next)
    for step in range(20):
        batch, order = following(data, jax.random.key(0), np.int32(step), order)
        seen |= set(batch.tolist())
    assert batches.per_epoch == 2
    assert seen == set(range(10))


def test_metrics_are_evaluated_at_every_record():
    calls = []

    def distance(params, rng_key):
        calls.append(1)
        return jnp.abs(params.variational)

    noisy = lambda params, rng_key: jax.random.normal(rng_key)
    result = fitted(20, record_every=10, metrics={"distance": distance, "noise": noisy})
    assert len(calls) == 1  # compiled once
    column = result.history.column("distance")
    assert column.shape == (2,)
    assert column[-1] == pytest.approx(abs(float(result.params.variational)))
    noise = result.history.column("noise")
    assert noise[0] == noise[1]  # common random numbers
    table = result.history.to_dict()
    assert set(table) == {
        "iteration",
        "seconds",
        "loss",
        "standard_error",
        "rejected",
        "distance",
        "noise",
    }
    assert len(result.history) == 2
    seconds = result.history.column("seconds")
    assert 0 < seconds[0] < seconds[1]


def test_callbacks_see_every_record_and_may_stop():
    seen = []

    def stop_at_twenty(record, state):
        seen.append((record.iteration, int(state.step)))
        return record.iteration >= 20

    callbacks = [stop_at_twenty, lambda record, state: None]
    result = fitted(100, record_every=10, callbacks=callbacks, max_seconds=60)
    assert seen == [(10, 10), (20, 20)]
    assert result.stop_reason is StopReason.CALLBACK
    assert int(result.state.step) == 20


def test_time_runs_out():
    result = run(10_000_000, record_every=20, max_seconds=0.02)
    assert result.stop_reason is StopReason.SECONDS
    assert result.history.column("seconds")[-1] >= 0.02
    assert int(result.state.step) < 10_000_000


class Traced(LinearLatent):
    """Counts how often its likelihood is traced."""

    def likelihood(self, model, latent, batch):
        COUNT.append(jnp.shape(batch))
        return super().likelihood(model, latent, batch)


COUNT: list = []


def test_a_run_compiles_once():
    """As many traces for 300 steps in many chunks as for a single one."""
    _, parameters, data = setting()
    traces = []
    for num_steps, record_every in ((10, 10), (300, 10)):
        COUNT.clear()
        fit(
            Traced(num_data=NUM_DATA),
            parameters,
            data,
            adam(),
            num_steps,
            jax.random.key(0),
            record_every=record_every,
            progress=False,
        )
        traces.append(len(COUNT))
    assert traces[0] == traces[1]


def exploding(after):
    """A rule whose update is not a number from a certain step on."""

    def update(updates, state, params=None):
        factor = jnp.where(state >= after, jnp.nan, 0.01)
        return jax.tree.map(lambda u: -factor * u, updates), state + 1

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


def test_steps_that_are_not_finite_are_dropped():
    problem, parameters, data = setting()
    bursting = Loop(problem, parameters, data, exploding(5), record_every=10)
    begin = bursting.init(parameters, jax.random.key(0))
    with pytest.warns(RuntimeWarning, match=r"35 of 40 steps were not finite"):
        result = bursting.run(begin, 1000, progress=False)
    good = bursting.run(begin, 5, progress=False)
    same_bits(result.params, good.params)  # the last good parameters
    assert result.stop_reason is StopReason.NOT_FINITE
    np.testing.assert_array_equal(result.history.column("rejected"), [5, 10, 10, 10])


def test_a_loss_that_is_not_finite_is_dropped_too():
    class Broken(LinearLatent):
        def likelihood(self, model, latent, batch):
            return super().likelihood(model * jnp.nan, latent, batch)

    _, parameters, data = setting()
    with pytest.warns(RuntimeWarning, match="not finite"):
        result = fit(
            Broken(num_data=NUM_DATA),
            parameters,
            data,
            adam(),
            5,
            jax.random.key(0),
            progress=False,
        )
    same_bits(result.params, parameters)
    assert result.stop_reason is StopReason.NOT_FINITE
    assert np.isnan(result.history.column("loss")).all()


def test_a_clean_run_warns_about_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(5)


def test_a_step_vectorises_over_runs():
    problem, parameters, data = setting()
    optimizer = optimizers.vpng(problem, 0.1, metric=Predictive(num_particles=2), damping=0.1)
    step = make_step(problem, optimizer, ELBO(2), Batches(NUM_DATA, 5))
    source = InMemory.create(data)

    def run_of(key):
        state = init_state(key, parameters, optimizer, Batches(NUM_DATA, 5))
        return jax.lax.scan(lambda s, _: step(s, source), state, length=4)

    keys = jax.random.split(jax.random.key(0), 3)
    together, info = jax.jit(jax.vmap(run_of))(keys)
    assert info.loss.shape == (3, 4)
    run_alone = jax.jit(run_of)
    for i in range(3):
        alone, _ = run_alone(keys[i])
        np.testing.assert_allclose(together.params.model[i], alone.params.model, rtol=1e-4)


def test_the_progress_bar_counts_steps(capsys):
    run(20, record_every=10, progress=True)
    assert "20/20" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("num_steps", {"num_steps": 0}),
        ("num_steps", {"num_steps": 2.5}),
        ("record_every", {"record_every": 0}),
        ("batch_size", {"batch_size": 0}),
        ("batch_size", {"batch_size": 11}),
        ("max_seconds", {"max_seconds": 0.0}),
        ("max_seconds", {"max_seconds": float("nan")}),
    ],
)
def test_bad_options(argument, options):
    options = {"num_steps": 5, **options}
    with pytest.raises(InputError, match=rf"^{argument}: expected .*, got "):
        run(options.pop("num_steps"), **options)


def test_data_must_be_as_many_as_the_problem_says():
    problem, parameters, data = setting()
    with pytest.raises(InputError, match=r"^data: expected problem.num_data = 10 data, got 9"):
        fit(problem, parameters, data[:9], adam(), 5, jax.random.key(0), progress=False)
