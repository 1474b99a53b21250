"""What a finished experiment leaves in its folder."""

from pathlib import Path

from vpng.paper.experiments.registry import Experiment
from vpng.paper.experiments.results import Results, Table, write_text


def markdown(table: Table) -> str:
    """A table as Markdown."""
    heads, rows = table
    escaped = [[cell.replace("|", "\\|") for cell in line] for line in (heads, *rows)]
    lines = [escaped[0], ["---"] * len(heads), *escaped[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def store(experiment: Experiment, results: Results, folder: Path) -> list[Path]:
    """Write figures, table, curves and results; the results last: they vouch for the rest."""
    table = experiment.table(results)
    return [
        *experiment.draw(results, folder),
        write_text(folder / "table.md", markdown(table)),
        write_text(folder / "curves.csv", results.to_csv()),
        write_text(folder / "results.json", results.to_json(table)),
    ]
