"""The progress bar of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Bar:
    def __init__(self, display: Any, per_unit: int = 1) -> None:
        self._display, self._per_unit, self._done = display, per_unit, 0

    def advance(self, steps: int, text: str) -> None:
        """Move on by `steps` and show a text."""
        before, self._done = self._done, self._done + steps
        if self._display is not None:
            self._display.set_postfix_str(text, refresh=False)
            self._display.update(self._done // self._per_unit - before // self._per_unit)


@contextmanager
def progress_bar(total: int, *, enabled: bool, per_epoch: int | None = None) -> Iterator[_Bar]:
    """A bar over `total` steps or the epochs that they make, or nothing."""
    if not enabled:
        yield _Bar(None)
        return
    from tqdm.auto import tqdm

    unit, size = ("step", 1) if per_epoch is None else ("epoch", per_epoch)
    with tqdm(total=total // size, unit=unit) as display:
        yield _Bar(display, size)


@contextmanager
def compiling(*, enabled: bool) -> Iterator[None]:
    """Says so while it lasts, or nothing."""
    if not enabled:
        yield
        return
    from tqdm.auto import tqdm

    with tqdm(bar_format="compiling{desc}", leave=False):
        yield
