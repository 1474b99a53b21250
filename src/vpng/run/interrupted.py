"""The end of a run that a signal stopped, in all of its processes."""

import signal

from vpng.distributed.processes import agreed
from vpng.runtime.interrupts import SIGNALS, received_signal


class InterruptedRunError(Exception):
    """A run was stopped by a signal, after what it had done was saved.

    Attributes:
        signal: which one.
    """

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(f"stopped by {received.name}")
        self.signal = received


def stop_if_interrupted() -> None:
    """Between two pieces of work whose results are safe; called by all processes of a run.

    Raises:
        InterruptedRunError: if a signal came, to this process or to another.
    """
    received = agreed(received_signal(), SIGNALS)
    if received is not None:
        raise InterruptedRunError(received)
