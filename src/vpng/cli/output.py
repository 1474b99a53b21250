"""What the command line shows and writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from vpng.experiments.registry import Announce, Experiment
from vpng.experiments.results import Results, write_text

console = Console(highlight=False)


@contextmanager
def announcements() -> Iterator[Announce]:
    """A live line that says what is running and for how long."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda text: progress.update(task, description=text)


def show(experiment: Experiment, results: Results) -> None:
    """Print the experiment's table."""
    heads, rows = experiment.table(results)
    table = Table(title=results.experiment, title_justify="left")
    for head in heads:
        table.add_column(head)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def markdown(experiment: Experiment, results: Results) -> str:
    """The experiment's table as Markdown."""
    heads, rows = experiment.table(results)
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def store(experiment: Experiment, results: Results, folder: Path) -> list[Path]:
    """Write results, table and figures; the results last, so that they vouch for the rest."""
    paths = experiment.draw(results, folder)
    paths.append(write_text(folder / "table.md", markdown(experiment, results)))
    paths.append(write_text(folder / "results.json", results.to_json()))
    return paths


def list_paths(paths: list[Path]) -> None:
    """Print where the files are."""
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
