"""The dumbbells: seconds of vpng and of Adam, case by case."""

from pathlib import Path
from typing import Any

from vpng.experiments.methods import Method
from vpng.experiments.palette import STYLES

OURS = STYLES[Method.VPNG.value]
ADAM = STYLES[Method.GRADIENT.value]


def draw(report: dict[str, Any], path: Path) -> None:
    """Two panels, steps and seconds, sorted by how much faster vpng is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    entries = sorted(report["cases"], key=lambda entry: entry["ratio_seconds"])
    figure = Figure(figsize=(11.0, 1.8 + 0.32 * len(entries)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, quantity, label in zip(
        panels, ("steps", "seconds"), ("steps", "seconds, without compilation"), strict=True
    ):
        _panel(axes, entries, quantity)
        mean = report["summary"][f"geometric_mean_ratio_{quantity}"]
        axes.set_title(f"{label}: Adam / vpng {mean:.1f} in the geometric mean", fontsize=10)
        axes.set_xlabel(f"{label} to within a nat of the best ELBO")
    names = [f"{entry['model']}\n{entry['guide']}" for entry in entries]
    panels[0].set_yticks(range(len(entries)), names, fontsize=7)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    figure.savefig(path, dpi=150)


def _panel(axes: Any, entries: list[dict[str, Any]], quantity: str) -> None:
    rows = range(len(entries))
    mine = [entry["vpng"][quantity] for entry in entries]
    theirs = [entry["adam"][quantity] for entry in entries]
    censored = [entry["adam"][f"{quantity}_censored"] for entry in entries]
    axes.hlines(rows, mine, theirs, color="0.6", linewidth=1.5, zorder=1)
    axes.scatter(
        mine, rows, s=36, marker=OURS.marker, color=OURS.colour, zorder=3, label="vpng, no tuning"
    )
    for never, fill, label in (
        (False, ADAM.colour, "Adam at its best step size"),
        (True, "white", "Adam never got there (its budget)"),
    ):
        chosen = [row for row in rows if censored[row] is never]
        axes.scatter(
            [theirs[row] for row in chosen],
            chosen,
            s=32,
            marker=ADAM.marker,
            facecolor=fill,
            edgecolor=ADAM.colour,
            zorder=2,
            label=label,
        )
    for row in rows:
        ratio = entries[row][f"ratio_{quantity}"]
        sign = {"at least": ">", "at most": "<", "undecided": "?"}.get(
            entries[row][f"ratio_{quantity}_is"], ""
        )
        text = f"{sign}{ratio:.3g}×"
        weight = "bold" if ratio < 1.0 else "normal"
        axes.text(
            1.01, row, text, transform=axes.get_yaxis_transform(), fontsize=7, va="center",
            fontweight=weight,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
