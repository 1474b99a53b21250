"""SIGINT and SIGTERM that let the work at hand be finished and saved."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import jax
from jaxtyping import Array

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_SHORTEST, _LONGEST = 1e-5, 0.05
_PART = 0.01


class Interrupt:
    """Whether somebody asked to stop.

    Attributes:
        signal: which signal came first; None so far.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


_ACTIVE: list[Interrupt] = []


@contextmanager
def deferred_interrupts() -> Iterator[Interrupt]:
    """Inside, the first SIGINT or SIGTERM is only noted; a second one interrupts at once.

    Handlers are installed in the main thread alone, and put back at the end. Inside another such
    block the interrupt is that one's, so that whoever is outside learns of it too.
    """
    if _ACTIVE or threading.current_thread() is not threading.main_thread():
        yield _ACTIVE[-1] if _ACTIVE else Interrupt()
        return
    interrupt = Interrupt()

    def note(number: int, frame: FrameType | None) -> None:
        if interrupt:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        interrupt.signal = signal.Signals(number)

    before = {number: signal.signal(number, note) for number in SIGNALS}
    _ACTIVE.append(interrupt)
    try:
        yield interrupt
    finally:
        _ACTIVE.remove(interrupt)
        for number, handler in before.items():
            # A handler that was not installed from Python reads as None.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def received_signal() -> signal.Signals | None:
    """The signal that this process was asked to stop with; None so far."""
    return next((interrupt.signal for interrupt in _ACTIVE if interrupt), None)


def wait_for(array: Array) -> None:
    """Wait until `array` is computed, awake enough to hear a second signal.

    While the main thread sleeps inside the runtime no Python handler runs; so it sleeps for a
    hundredth of the time already waited, where handlers are installed.
    """
    began = time.perf_counter()
    while _ACTIVE and not array.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
        pause = _PART * (time.perf_counter() - began)
        time.sleep(min(max(pause, _SHORTEST), _LONGEST))
    jax.block_until_ready(array)
