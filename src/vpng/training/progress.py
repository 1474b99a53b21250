"""The progress bar of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vpng.training.history import Record


class _Bar:
    def __init__(self, display: Any) -> None:
        self._display = display

    def advance(self, steps: int, record: Record) -> None:
        """Move on by `steps` and show the record's loss."""
        if self._display is not None:
            self._display.set_postfix_str(f"loss {record.loss:.4g}", refresh=False)
            self._display.update(steps)


@contextmanager
def progress_bar(total: int, *, enabled: bool) -> Iterator[_Bar]:
    """A bar over `total` steps, or nothing."""
    if not enabled:
        yield _Bar(None)
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="step") as display:
        yield _Bar(display)
