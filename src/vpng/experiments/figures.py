"""Figures: one look for all, saved as PNG and SVG."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vpng.experiments.bands import band
from vpng.experiments.methods import label_of
from vpng.experiments.palette import style_of
from vpng.experiments.results import Results, Run, write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXIS_LABELS = {"iteration": "iterations", "seconds": "seconds"}


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib without a display and with the project's look."""
    import matplotlib as mpl

    mpl.use("Agg")
    with look():
        yield


@contextmanager
def look() -> Iterator[None]:
    """The project's look on whatever display there is."""
    import matplotlib as mpl

    settings = {
        "axes.grid": True,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "figure.constrained_layout.use": True,
        "figure.dpi": 150,
        "font.size": 10,
        "grid.alpha": 0.3,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "svg.fonttype": "none",
        "svg.hashsalt": "vpng",
    }
    with mpl.rc_context(settings):
        yield


def save(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """Write `figure` as PNG and SVG into `folder` and close it."""
    import matplotlib.pyplot as plt

    # No date inside, so that the same results give the same file.
    metadata = {"png": {}, "svg": {"Date": None}}
    paths = [
        write_atomically(
            folder / f"{name}.{kind}",
            lambda target, kind=kind: figure.savefig(target, format=kind, metadata=metadata[kind]),
        )
        for kind in ("png", "svg")
    ]
    plt.close(figure)
    return paths


def line_look(name: str, position: int = 0) -> dict[str, Any]:
    """The colour, dash and marker of a line, as matplotlib takes them."""
    style = style_of(name, position)
    return {
        "color": style.colour,
        "linestyle": (0, style.dash) if style.dash else "solid",
        "marker": style.marker,
        "markersize": 5,
    }


def draw_band(axes: "Axes", runs: Sequence[Run], name: str, x: str, y: str) -> float | None:
    """One method's mean over seeds with a band of one standard deviation; returns its last mean."""
    found = band([(run.curves[x], run.curves[y]) for run in runs if run.method == name])
    if found is None:
        return None
    look = line_look(name)
    axes.plot(
        found.x, found.mean, label=label_of(name), markevery=max(1, len(found.x) // 8), **look
    )
    if found.count > 1:
        axes.fill_between(found.x, found.low, found.high, color=look["color"], alpha=0.18, lw=0)
    return float(found.mean[-1])


def draw_panels(
    results: Results,
    folder: Path,
    name: str,
    metrics: Mapping[str, str],
    axes: Sequence[str] = ("seconds", "iteration"),
) -> list[Path]:
    """Every method's curves, a row for each metric and a column for each axis.

    Args:
        results: whose runs are drawn.
        folder: where the files go.
        name: of the files.
        metrics: the curves to draw and their labels; higher is better.
        axes: the curves to draw them against.
    """
    import matplotlib.pyplot as plt

    size = (1.4 + 4.6 * len(axes), 0.6 + 3.3 * len(metrics))
    with house_style():
        figure, panels = plt.subplots(
            len(metrics), len(axes), figsize=size, sharey="row", squeeze=False
        )
        for row, (metric, label) in zip(panels, metrics.items(), strict=True):
            for panel, axis in zip(row, axes, strict=True):
                ends = [draw_band(panel, results.runs, m, axis, metric) for m in results.summary]
                panel.set(xlabel=AXIS_LABELS.get(axis, axis), ylim=_window(panel, ends))
            row[0].set_ylabel(label)
        # A clock that never moved leaves the panel of seconds empty.
        drawn = [panel for panel in panels.flat if panel.get_legend_handles_labels()[0]]
        if drawn:
            drawn[0].legend(loc="lower right")
        return save(figure, folder, name)


def _window(panel: "Axes", ends: Sequence[float | None]) -> tuple[float, float]:
    """The part worth seeing: from somewhat below the worst end to just above the best."""
    values = np.concatenate([line.get_ydata() for line in panel.lines] or [np.zeros(1)])
    known = [end for end in ends if end is not None] or [0.0]
    best, worst = float(values.max()), min(known)
    reach = max(best - worst, 0.02 * abs(best), 1e-6)
    return max(float(values.min()), worst - 2.5 * reach) - 0.03 * reach, best + 0.08 * reach
