"""Training with a validation set: the best parameters are kept, and a run that no longer helps
ends.
"""

from typing import NamedTuple

import jax

from vpng.problem import Parameters
from vpng.training import History, Loop, Record, TrainState
from vpng.training.loop import Readout


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
    loop: Loop,
    state: TrainState,
    *,
    num_steps: int,
    metric: str | None,
    readout: Readout,
    patience: int,
    progress: bool,
) -> Trained:
    """At most `num_steps` steps; with a metric the parameters where it was best.

    Args:
        loop: with one record an epoch.
        state: where to start.
        num_steps: most steps.
        metric: the one of the loop's that is to become large; None to train to the end.
        readout: which parameters of a state count.
        patience: epochs without a better metric before the run ends.
        progress: whether to show a progress bar.
    """
    keeper = None if metric is None else KeepBest(metric, patience, jax.jit(readout))
    callbacks = [] if keeper is None else [keeper]
    result = loop.run(state, num_steps, callbacks=callbacks, progress=progress)
    best = None if keeper is None else keeper.best
    return Trained(result.params if best is None else best, result.history, len(result.history))
