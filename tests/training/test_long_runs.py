"""Long runs: nothing grows, nothing is compiled twice, and the run ends when it is done."""

import gc
import logging
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vpng import Loop, Parameters, StopReason, fit, optimizers
from vpng.problems import LinearLatent
from vpng.run.stopping import Converged
from vpng.training import Checkpoints, EverySeconds, EverySteps

NUM_DATA = 400


def setting():
    data = jnp.asarray(np.random.default_rng(0).normal(size=NUM_DATA) * 2.0, jnp.float32)
    return LinearLatent(num_data=NUM_DATA), Parameters(jnp.asarray(0.1), jnp.asarray(0.5)), data


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.endurance
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_nothing_grows_over_ten_thousand_steps(tmp_path):
    problem, parameters, data = setting()
    optimizer = optimizers.gradient(1e-3, rule=optax.scale_by_adam())
    loop = Loop(problem, parameters, data, optimizer, batch_size=4, record_every=10)

    def go(num_steps, folder):
        keep = Checkpoints(tmp_path / folder, every=EverySteps(500))
        state = loop.init(parameters, jax.random.key(0))
        result = loop.run(state, num_steps, progress=False, checkpoints=keep)
        return len(result.history)

    go(500, "warm")
    gc.collect()
    arrays, memory = len(jax.live_arrays()), resident()
    assert go(10_000, "long") == 1000
    gc.collect()
    assert len(jax.live_arrays()) == arrays
    # A thousand chunks: 8 KiB for each of them would be too much. What remains is the allocator's.
    assert resident() - memory < 8 * 1024**2


def test_one_compilation_for_a_run_its_resume_and_its_last_chunk(tmp_path, caplog):
    problem, parameters, data = setting()
    keep = Checkpoints(tmp_path, every=EverySeconds(0.0))
    for num_steps, compilations in ((17, 1), (33, 0)):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            result = fit(
                problem,
                parameters,
                data,
                optimizers.gradient(0.01),
                num_steps,
                jax.random.key(0),
                batch_size=4,
                record_every=10,
                progress=False,
                checkpoints=keep,
                resume=True,
            )
        compiled = [
            line
            for line in caplog.messages
            if line.startswith("Finished XLA compilation of jit(chunk)")
        ]
        assert len(compiled) == compilations
        assert int(result.state.step) == num_steps


RULE = Converged(window=100, patience=2, max_steps=100_000)


def descend(rate, num_steps, start=0.5, seed=0):
    """Minibatches of four: the loss of a step is far noisier than what a step gains."""
    problem, _, data = setting()
    return fit(
        problem,
        Parameters(jnp.asarray(0.1), jnp.asarray(start)),
        data,
        optimizers.gradient(rate, rule=optax.scale_by_adam()),
        num_steps,
        jax.random.key(seed),
        batch_size=4,
        stop=RULE,
        progress=False,
    )


def test_a_run_that_improves_below_its_noise_is_not_stopped():
    """From theta = 30 in steps of 0.03 by Adam towards zero.

    A step gains well under a tenth of the noise of a step, which is asserted; a window of 100
    steps gains more than five standard errors of the difference of two windows. To pass the test
    for `patience` = 2 windows in a row by chance, the sum of both gains must fall short by eight of
    its standard errors.
    """
    result = descend(0.03, 800, start=30.0)
    losses = result.history.step_losses
    assert result.stop_reason is StopReason.STEPS
    noise = np.std(np.diff(losses)) / np.sqrt(2.0)
    gain = (losses[:100].mean() - losses[-100:].mean()) / (len(losses) - 100)
    assert 0.0 < gain < 0.1 * noise
    means = losses.reshape(-1, 100).mean(axis=1)
    spread = np.std(np.diff(losses.reshape(-1, 100), axis=1), axis=1) / np.sqrt(2.0)
    errors = np.sqrt(spread[1:] ** 2 + spread[:-1] ** 2) / 10.0
    assert np.mean((means[:-1] - means[1:]) / errors) > 5.0


def test_a_run_that_has_arrived_is_stopped():
    """On a plateau a window passes with probability 0.84, so soon two in a row do."""
    result = descend(0.05, 5000)
    assert result.stop_reason is StopReason.CONVERGED
    assert 300 <= int(result.state.step) <= 3000
    assert int(result.state.step) % RULE.window == 0


def test_the_rule_has_a_last_step_of_its_own():
    problem, parameters, data = setting()
    result = fit(
        problem,
        parameters,
        data,
        optimizers.gradient(0.01),
        1000,
        jax.random.key(0),
        stop=Converged(window=1000, max_steps=30),
        record_every=20,
        progress=False,
    )
    assert (int(result.state.step), result.stop_reason) == (30, StopReason.STEPS)


@pytest.mark.parametrize("record_every", [30, 100, 250])
def test_the_windows_do_not_depend_on_the_records(record_every):
    """Only whole windows are tested, and each as soon as a record comes after its end."""
    rule = Converged(window=100, patience=1)
    losses = np.concatenate([np.linspace(10.0, 0.0, 500), np.zeros(1000)])
    losses += 0.01 * np.random.default_rng(0).normal(size=1500)
    tested, done = [], 0
    while done < 1500:
        before, done = done, min(done + record_every, 1500)
        latest = lambda count, done=done: losses[max(done - count, 0) : done]
        if rule.reached_between(before, done, latest):
            tested.append(done)
            break
    whole = next(end for end in range(100, 1501, 100) if rule.reached(losses[:end]))
    ends = np.arange(record_every, 1500 + record_every, record_every)
    assert tested[0] == min(int(ends[ends >= whole][0]), 1500)
