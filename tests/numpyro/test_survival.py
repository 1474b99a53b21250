"""`SVI.run` with checkpoints: exact resume, signals, one compilation."""

import logging
import os
import signal

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

from vpng.errors import InputError
from vpng.numpyro import SVI
from vpng.run.stopping import Converged
from vpng.training import Checkpoints, EverySteps

X = np.linspace(-1.0, 1.0, 8, dtype=np.float32)


def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def run(num_steps, x=X, **options):
    svi = SVI(model, AutoNormal(model))
    return svi.run(jax.random.key(0), num_steps, x, progress_bar=False, **options)


def same_run(first, second):
    np.testing.assert_array_equal(first.losses, second.losses)
    jax.tree.map(np.testing.assert_array_equal, first.params, second.params)


def test_a_run_stopped_by_a_signal_ends_where_the_whole_one_ends(tmp_path, monkeypatch, caplog):
    keep = Checkpoints(tmp_path, every=EverySteps(1))
    rule = Converged(window=20, patience=2, max_steps=390)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        whole = run(rule)
    compiled_at_first = [line for line in caplog.messages if "Finished XLA compilation" in line]
    caplog.clear()
    tests = []

    def stop_at_the_second_window(self, before, now, latest):
        tests.append(now)
        if len(tests) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, before, now, latest)

    original = Converged.reached_between
    monkeypatch.setattr(Converged, "reached_between", stop_at_the_second_window)
    stopped = run(rule, checkpoints=keep)
    assert stopped.interrupted
    assert not stopped.converged
    assert len(stopped.losses) == 40
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    with pytest.raises(InputError, match="arrays of arguments: other values"):
        run(rule, X + 1.0, checkpoints=keep, resume=True)

    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        rest = run(rule, checkpoints=keep, resume=True)
    same_run(whole, rest)
    assert rest.converged == whole.converged
    assert not rest.interrupted
    compiled = [line for line in caplog.messages if line.startswith("Finished XLA compilation")]
    # Neither for the restored state, nor for a last and shorter chunk.
    assert not [line for line in compiled if "steps_of_svi" in line]
    assert any("steps_of_svi" in line for line in compiled_at_first)
    same_run(whole, run(rule, checkpoints=keep, resume=True))
