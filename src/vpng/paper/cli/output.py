"""What the command line shows."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from vpng.paper.experiments.results import Table
from vpng.paper.experiments.session import Status, Watcher

console = Console(highlight=False)


@contextmanager
def live_status(experiment: str) -> Iterator[Watcher]:
    """A live line: which run of how many, how it goes, how long it will take.

    Where there is no terminal, a plain line for every finished run instead.
    """
    errors = Console(stderr=True, highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20))
    with Progress(*columns, TimeElapsedColumn(), console=errors, transient=True) as progress:
        task = progress.add_task(experiment, total=1.0)
        began = time.monotonic()
        latest = ""

        def watch(status: Status) -> None:
            nonlocal latest
            latest = status.detail or latest
            line = status_line(experiment, status, latest)
            if errors.is_terminal:
                progress.update(task, description=line, completed=status.fraction)
            elif status.finished:
                elapsed = time.monotonic() - began
                errors.print(f"[{elapsed:6.0f} s] {line}", markup=False, soft_wrap=True)
            if status.finished:
                latest = ""

        yield watch


def status_line(experiment: str, status: Status, detail: str) -> str:
    """One line about where an experiment is."""
    parts = [f"{experiment}: {status.title}"]
    if status.position:
        parts[0] = f"{experiment}, run {status.position} of {status.total}: {status.title}"
    if detail:
        parts.append(detail)
    if status.seconds_left is not None:
        parts.append(f"{duration(status.seconds_left)} left")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever reads best."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def show(title: str, table: Table) -> None:
    """Print a table."""
    heads, rows = table
    shown = RichTable(title=title, title_justify="left")
    for head in heads:
        shown.add_column(head)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def list_paths(paths: list[Path]) -> None:
    """Print where the files are."""
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
