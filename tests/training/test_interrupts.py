"""Signals: the chunk is finished and saved, handlers come back, a second one is heard at once."""

import os
import signal
import threading
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import Loop, Parameters, StopReason, optimizers
from vpng.problems import LinearLatent
from vpng.run.interrupted import InterruptedRunError, stop_if_interrupted
from vpng.runtime.interrupts import deferred_interrupts, wait_for
from vpng.training import Checkpoints


@pytest.fixture(scope="module")
def loop():
    problem = LinearLatent(num_data=4)
    parameters = Parameters(jnp.asarray(0.1), jnp.asarray(0.5))
    return Loop(problem, parameters, jnp.ones(4), optimizers.gradient(0.01), record_every=5)


def start(loop):
    return loop.init(Parameters(jnp.asarray(0.1), jnp.asarray(0.5)), jax.random.key(0))


def kill_at(step, number):
    def callback(record, state):
        if record.iteration == step:
            os.kill(os.getpid(), number)

    return callback


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_chunk_and_saves(loop, tmp_path, number):
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    whole = loop.run(start(loop), 50, progress=False)
    keep = Checkpoints(tmp_path)
    stopped = loop.run(
        start(loop), 50, progress=False, checkpoints=keep, callbacks=[kill_at(10, number)]
    )
    assert stopped.stop_reason is StopReason.INTERRUPTED
    assert int(stopped.state.step) == 10
    assert (tmp_path / "step-000000000010.vpng").exists()
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    rest = loop.run(start(loop), 50, progress=False, checkpoints=keep, resume=True)
    np.testing.assert_array_equal(rest.history.step_losses, whole.history.step_losses)
    np.testing.assert_array_equal(rest.params.model, whole.params.model)


def test_a_signal_in_the_last_chunk_changes_nothing(loop, tmp_path):
    result = loop.run(
        start(loop),
        10,
        progress=False,
        checkpoints=Checkpoints(tmp_path),
        callbacks=[kill_at(10, signal.SIGINT)],
    )
    assert result.stop_reason is StopReason.STEPS


def test_without_checkpoints_ctrl_c_is_python_s_own(loop):
    with pytest.raises(KeyboardInterrupt):
        loop.run(start(loop), 50, progress=False, callbacks=[kill_at(10, signal.SIGINT)])


def test_a_second_signal_interrupts_at_once():
    for second, error in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        with pytest.raises(error) as raised, deferred_interrupts():  # noqa: PT012
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), second)
            raise AssertionError("not reached")
        if error is SystemExit:
            assert raised.value.code == 143


def test_handlers_come_back_after_an_error():
    mine = lambda number, frame: None
    before = signal.signal(signal.SIGTERM, mine)
    try:
        with pytest.raises(RuntimeError), deferred_interrupts():
            raise RuntimeError
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_no_handlers_outside_the_main_thread(loop, tmp_path):
    seen = []
    before = signal.getsignal(signal.SIGINT)

    def callback(record, state):
        seen.append(signal.getsignal(signal.SIGINT) is before)

    def work():
        keep = Checkpoints(tmp_path)
        loop.run(start(loop), 10, progress=False, checkpoints=keep, callbacks=[callback])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True, True]


def test_an_outer_block_learns_of_it():
    with deferred_interrupts() as outer:
        stop_if_interrupted()
        with deferred_interrupts() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
        assert inner is outer
        assert outer.signal is signal.SIGTERM
        with pytest.raises(InterruptedRunError, match="stopped by SIGTERM"):
            stop_if_interrupted()
    stop_if_interrupted()


def test_a_second_signal_is_heard_inside_a_long_program():
    """While it runs, which takes seconds; without the pauses it would be heard afterwards."""
    matrix = jnp.eye(200)
    busy = jax.jit(lambda x: jax.lax.fori_loop(0, 8000, lambda i, y: x @ y, x))
    compiled = busy.lower(matrix).compile()

    def later():
        for _ in range(2):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=later)
    thread.start()
    result = None
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():  # noqa: PT012
        result = compiled(matrix)
        wait_for(result)
    thread.join()
    assert result is not None
    assert not result.is_ready()


def test_waiting_is_quiet_without_handlers():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wait_for(jnp.ones(3) + 1)
