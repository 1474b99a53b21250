"""How a run ended."""

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from vpng.run.history import History

State = TypeVar("State")


class StopReason(Enum):
    """Why a run ended."""

    STEPS = "all steps were done"
    SECONDS = "the time was used up"
    CALLBACK = "a callback asked to stop"
    CONVERGED = "the loss no longer improves by more than its noise"
    INTERRUPTED = "a signal asked to stop; the checkpoint is the place to go on from"
    NOT_FINITE = (
        "too many steps in a row had a loss, gradient or update that is not finite; the parameters "
        "are the last good ones. "
        "Lower the learning rate, raise the damping, look at the data or use float64"
    )

    @property
    def final(self) -> bool:
        """Whether more steps or more time would not undo it."""
        return self in (StopReason.CALLBACK, StopReason.NOT_FINITE, StopReason.CONVERGED)


@dataclass(frozen=True)
class Outcome(Generic[State]):
    """A finished run.

    Attributes:
        state: the last good one, from which a run can go on.
        reached: where the last step led, which differs from `state` if no step could be taken.
        history: its records and losses.
        stop_reason: why it ended.
    """

    state: State
    reached: State
    history: History
    stop_reason: StopReason

    @property
    def rejected(self) -> int:
        """Steps that were dropped because something was not finite."""
        return sum(record.rejected - record.exploded for record in self.history.records)

    @property
    def exploded(self) -> int:
        """Steps after which the run went back to a good point."""
        return sum(record.exploded for record in self.history.records)

    @property
    def cause(self) -> str:
        """What was not finite in the first step that was dropped, as far as the steps know."""
        return next((record.cause for record in self.history.records if record.cause), "")

    @property
    def explosions(self) -> str:
        """How often the loss exploded and what was done, in words; empty if it never did."""
        if not self.exploded:
            return ""
        times = "once" if self.exploded == 1 else f"{self.exploded} times"
        return (
            f"the loss exploded {times} in {len(self.history.step_losses)} steps, and the run went "
            "back to a good point with shorter steps"
        )
