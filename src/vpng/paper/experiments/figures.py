"""Figures of results: every method's curves over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vpng.paper.experiments.bands import band
from vpng.paper.experiments.results import Results, Run
from vpng.plot.look import house_style, line_look, save
from vpng.plot.methods import label_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXIS_LABELS = {"iteration": "iterations", "seconds": "seconds"}


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
