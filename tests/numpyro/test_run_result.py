"""The result of a run: NumPyro's to those who unpack it, and it keeps how the run ended."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.svi import SVIRunResult, SVIState

from vpng.numpyro import RunResult
from vpng.numpyro.result import Ending
from vpng.run.history import History
from vpng.run.outcome import StopReason


def result(reason=StopReason.CONVERGED, converged=True):
    state = SVIState(jnp.zeros(2), None, jnp.zeros(2, jnp.uint32))
    ending = Ending(reason, History(losses=[np.ones(3)]), converged)
    return RunResult({"loc": jnp.ones(2)}, state, jnp.arange(3.0), ending)


def test_it_is_numpyros_tuple():
    params, state, losses = result()
    assert isinstance(result(), SVIRunResult)
    assert RunResult._fields == SVIRunResult._fields
    assert set(params) == {"loc"}
    assert isinstance(state, SVIState)
    assert losses.shape == (3,)


@pytest.mark.parametrize(
    "same",
    [
        lambda found: found._replace(losses=found.losses),
        copy.copy,
        copy.deepcopy,
        jax.block_until_ready,
        jax.jit(lambda found: found),
        lambda found: jax.tree.map(jnp.add, found, result(StopReason.STEPS, None)),
    ],
    ids=["replace", "copy", "deep copy", "wait", "jit", "two runs"],
)
def test_copies_know_how_the_run_ended(same):
    found = same(result())
    assert type(found) is RunResult
    assert found.stop_reason is StopReason.CONVERGED
    assert found.converged is True
    assert found.interrupted is False
    assert len(found.history.step_losses) == 3


def test_replaced_fields_are_replaced():
    assert result()._replace(losses=None).losses is None
    with pytest.raises(TypeError):
        result()._replace(unknown=1)
