"""Training with a validation set: the best parameters are kept, and a run that no longer helps
ends.
"""

from typing import NamedTuple

import jax
import optax
from jaxtyping import PRNGKeyArray, PyTree

from vpng.objective import ELBO
from vpng.problem import Parameters, Problem
from vpng.training import History, Loop, Record, TrainState
from vpng.training.loop import Readout
from vpng.training.mean_elbo import mean_elbo


class KeepBest:
    """A callback that remembers the parameters with the best metric.

    Attributes:
        best: the parameters.
        record: of the moment that they are from.
    """

    def __init__(self, metric: str, patience: int, readout: Readout) -> None:
        """Stop after `patience` records without a better `metric`; higher is better."""
        self._metric, self._patience, self._readout = metric, patience, readout
        self._waited = 0
        self.best: Parameters | None = None
        self.record: Record | None = None

    def __call__(self, record: Record, state: TrainState) -> bool:
        """Whether to stop."""
        better = (
            self.record is None or record.metrics[self._metric] > self.record.metrics[self._metric]
        )
        if better:
            self.best, self.record, self._waited = self._readout(state), record, 0
        else:
            self._waited += 1
        return self._waited >= self._patience


class Trained(NamedTuple):
    """The best parameters, the run's history and the number of epochs it took."""

    parameters: Parameters
    history: History
    epochs: int


def train(
    rng_key: PRNGKeyArray,
    problem: Problem,
    parameters: Parameters,
    data: PyTree,
    optimizer: optax.GradientTransformation,
    *,
    readout: Readout,
    objective: ELBO,
    batch_size: int,
    max_epochs: int,
    validation: PyTree | None,
    measured: Problem,
    patience: int,
    progress: bool,
) -> Trained:
    """At most `max_epochs` epochs; with a validation set those with its best ELBO.

    Args:
        rng_key: the same key gives the same run.
        problem: what is fitted.
        parameters: where to start.
        data: what it is fitted to.
        optimizer: makes the steps.
        readout: which parameters of a state count.
        objective: the loss.
        batch_size: data for a step.
        max_epochs: most passes through the data.
        validation: data that no step sees; None to train to the end.
        measured: the problem that the validation ELBO is of, without what regularises.
        patience: epochs without a better validation ELBO before the run ends.
        progress: whether to show a progress bar.
    """
    per_epoch = max(problem.num_data // batch_size, 1)
    metrics = {}
    if validation is not None:
        metrics["validation_elbo"] = mean_elbo(measured, validation, 4)
    loop = Loop(
        problem,
        parameters,
        data,
        optimizer,
        objective=objective,
        batch_size=batch_size,
        record_every=per_epoch,
        metrics=metrics,
        readout=readout,
    )
    keeper = KeepBest("validation_elbo", patience, jax.jit(readout))
    result = loop.run(
        loop.init(parameters, rng_key),
        max_epochs * per_epoch,
        callbacks=[keeper] if metrics else [],
        progress=progress,
    )
    best = result.params if keeper.best is None else keeper.best
    return Trained(best, result.history, len(result.history))
