"""The dumbbells: seconds of vpng and of Adam, case by case."""

from pathlib import Path
from typing import Any

from vpng.plot.methods import Method
from vpng.plot.palette import STYLES, Style

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
        axes.set_xlabel(f"{quantity} to within a nat of the best ELBO")
    names = [f"{entry['model']}\n{entry['guide']}" for entry in entries]
    panels[0].set_yticks(range(len(entries)), names, fontsize=7)
    legend = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(legend.values()),
        list(legend),
        loc="outside lower center",
        ncols=4,
        fontsize=9,
        frameon=False,
    )
    figure.savefig(path, dpi=150)


def _panel(axes: Any, entries: list[dict[str, Any]], quantity: str) -> None:
    rows = range(len(entries))
    mine = [entry["vpng"][quantity] for entry in entries]
    theirs = [entry["adam"][quantity] for entry in entries]
    axes.hlines(rows, mine, theirs, color="0.6", linewidth=1.5, zorder=1)
    late = [entry["vpng"]["censored"] for entry in entries]
    _points(axes, mine, late, OURS, "vpng, no tuning", "vpng never got there")
    late = [entry["adam"][f"{quantity}_censored"] for entry in entries]
    _points(axes, theirs, late, ADAM, "Adam at its best step size", "Adam never got there")
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
    axes.xaxis.set_minor_formatter("")
    axes.margins(x=0.1)
    axes.set_ylim(-0.7, len(entries) - 0.3)
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _points(
    axes: Any, values: list[float], censored: list[bool], style: Style, name: str, never: str
) -> None:
    """Filled where a run arrived, hollow, at its budget, where it never did."""
    for hollow, fill, label in ((False, style.colour, name), (True, "white", never)):
        chosen = [row for row, late in enumerate(censored) if late is hollow]
        if chosen:
            axes.scatter(
                [values[row] for row in chosen],
                chosen,
                s=34,
                marker=style.marker,
                facecolor=fill,
                edgecolor=style.colour,
                zorder=3,
                label=label,
            )
