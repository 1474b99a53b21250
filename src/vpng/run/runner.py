"""The one loop over the steps of a run.

It owns what every run has: chunks, history, checkpoints, signals, the progress bar, rules for
stopping, callbacks, the clock, and the agreement of several processes. It knows nothing of what a
step does.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from jaxtyping import PyTree

from vpng.distributed.faults import stopping_if_lost
from vpng.distributed.processes import agreed, is_first
from vpng.run.checkpoint import CheckpointFolder, Checkpoints
from vpng.run.chunk import Chunk
from vpng.run.history import History, Record
from vpng.run.identity import RunIdentity
from vpng.run.outcome import Outcome, StopReason
from vpng.run.progress import progress_bar
from vpng.run.stopping import Converged
from vpng.runtime.interrupts import Interrupt, deferred_interrupts

State = TypeVar("State")

Callback = Callable[[Record, State], bool | None]


class AbstractSteps(ABC, Generic[State]):
    """The steps of one run, a compiled chunk at a time."""

    @abstractmethod
    def advance(self, state: State, length: int) -> tuple[State, Chunk]:
        """Do `length` steps."""

    @abstractmethod
    def is_stuck(self, state: State, record: Record, history: History, *, at_end: bool) -> bool:
        """Whether no step can be taken from here, so that it makes no sense to go on.

        Args:
            state: after the last chunk.
            record: of that chunk.
            history: of the run.
            at_end: whether no steps are left to do.
        """

    @abstractmethod
    def last_good(self, state: State) -> State:
        """The last state at which everything was finite."""

    @abstractmethod
    def identity(self, state: State) -> RunIdentity:
        """What must be the same for a run to go on from a checkpoint of this one."""

    def measure(self, state: State) -> dict[str, float]:
        """What every record has besides the loss."""
        return {}

    def to_save(self, state: State) -> PyTree:
        """All that the next chunk reads, whole in this process."""
        return state

    def from_saved(self, saved: PyTree, step: int) -> State:
        """The state that `to_save` was given after so many steps."""
        return saved


def last_loss(history: History) -> str:
    """What the progress bar shows unless told otherwise."""
    return f"loss {history.records[-1].loss:.4g}"


@dataclass(frozen=True)
class Runner(Generic[State]):
    """A run of so many steps.

    Attributes:
        steps: what is run.
        chunk: most steps between two records.
        max_seconds: time for the steps, without compilation and evaluation.
        stop: a rule for stopping before all steps are done.
        callbacks: called with every record and the state; True to stop.
        progress: whether to show a progress bar.
        per_epoch: steps of an epoch, for a bar that counts epochs; None to count steps.
        shown: what the bar shows.
        checkpoints: where to keep the state while running.
        resume: whether to go on from the newest of them.
    """

    steps: AbstractSteps[State]
    chunk: int
    max_seconds: float | None = None
    stop: Converged | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool = True
    per_epoch: int | None = None
    shown: Callable[[History], str] = last_loss
    checkpoints: Checkpoints | None = None
    resume: bool = False

    def run(self, state: State, num_steps: int, first_step: int = 0) -> Outcome[State]:
        """Do steps until there is a reason to stop.

        Args:
            state: before the first step.
            num_steps: most steps, those before a checkpoint that is gone on from included.
            first_step: steps done before by whoever made the state.
        """
        steps, step, last = self.steps, first_step, first_step + num_steps
        history, seconds, reason, reached = History(), 0.0, None, state
        folder = self._folder(state, first_step)
        if folder is not None and folder.found is not None:
            saved, step, history, seconds, ending = folder.found
            reached = state = steps.from_saved(saved, step)
            reason = None if ending is None else StopReason[ending]
        if reason is None and seconds >= self._most_seconds:
            reason = StopReason.SECONDS
        signals = nullcontext(Interrupt()) if folder is None else deferred_interrupts()
        enabled = self.progress and is_first()
        shown = progress_bar(num_steps, enabled=enabled, per_epoch=self.per_epoch)
        with stopping_if_lost(), signals as interrupt, shown as bar:
            bar.advance(step - first_step, "")
            while reason is None and step < last:
                count = min(self.chunk, last - step)
                reached, chunk = steps.advance(state, count)
                state, before, step = reached, step, step + count
                seconds += chunk.seconds
                record = _record(step, seconds, chunk, steps.measure(state))
                history.records.append(record)
                history.losses.append(chunk.losses)
                bar.advance(count, self.shown(history))
                reason = self._reason(state, before, history, at_end=step >= last)
                if reason is None and interrupt and step < last:
                    reason = StopReason.INTERRUPTED
                reason = agreed(reason, tuple(StopReason))
                if reason is StopReason.NOT_FINITE:
                    state = steps.last_good(state)
                if folder is not None:
                    folder.note([record], chunk.losses)
                    if reason is not None or step >= last or folder.due(step):
                        ending = reason.name if reason is not None and reason.final else None
                        folder.save(step, steps.to_save(state), seconds, ending)
        return Outcome(state, reached, history, reason or StopReason.STEPS)

    @property
    def _most_seconds(self) -> float:
        return math.inf if self.max_seconds is None else self.max_seconds

    def _reason(
        self, state: State, before: int, history: History, *, at_end: bool
    ) -> StopReason | None:
        """Why to stop after the last record, in the order of what weighs more."""
        record = history.records[-1]
        stops = [bool(callback(record, state)) for callback in self.callbacks]
        if any(stops):
            return StopReason.CALLBACK
        if self.steps.is_stuck(state, record, history, at_end=at_end):
            return StopReason.NOT_FINITE
        rule = self.stop
        if rule is not None and rule.reached_between(before, record.iteration, history.latest):
            return StopReason.CONVERGED
        return StopReason.SECONDS if record.seconds >= self._most_seconds else None

    def _folder(self, state: State, first_step: int) -> CheckpointFolder | None:
        if self.checkpoints is None:
            return None
        saved = self.steps.to_save(state)
        identity = self.steps.identity(state)
        folder = CheckpointFolder(self.checkpoints, identity, saved, resume=self.resume)
        if folder.found is None:
            # The first one shows that the others can be written too.
            folder.write(first_step, saved, 0.0)
        return folder


def _record(step: int, seconds: float, chunk: Chunk, metrics: dict[str, float]) -> Record:
    losses = np.asarray(chunk.losses, np.float64)
    kept = losses[~chunk.rejected]
    loss = float(kept.mean()) if kept.size else float("nan")
    error = float(kept.std(ddof=1) / np.sqrt(kept.size)) if kept.size > 1 else float("inf")
    cause = ""
    if chunk.cause:
        cause = f"{chunk.cause} at step {step - len(losses) + int(chunk.rejected.argmax()) + 1}"
    rejected, exploded = int(chunk.rejected.sum()), int(chunk.exploded.sum())
    return Record(step, seconds, loss, error, rejected, metrics, cause, exploded)
