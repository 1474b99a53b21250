"""The curves: how far below the best ELBO everybody is, against seconds from the call on."""

import math
from pathlib import Path
from typing import Any

from large.verdict import VPNG, best_of, runs_of, tolerance
from vpng.plot.palette import SPARE

COLUMNS = 4


def draw(cases: dict[str, Any], path: Path) -> None:
    """One panel for each case."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = max(1, math.ceil(len(cases) / COLUMNS))
    figure = Figure(figsize=(13.0, 1.0 + 2.3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, COLUMNS, squeeze=False).ravel()
    for axes in panels[len(cases) :]:
        axes.set_axis_off()
    for axes, (name, found) in zip(panels, cases.items(), strict=False):
        _panel(axes, name, found)
    handles, labels = panels[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(list(unique.values()), list(unique), loc="outside lower center", ncols=4)
    figure.supxlabel("seconds from the call on, compiling included")
    figure.supylabel("nats below the best ELBO")
    figure.savefig(path, dpi=130)


def _panel(axes: Any, name: str, found: dict[str, Any]) -> None:
    best = best_of(found)
    near = tolerance(best)
    styles = {VPNG: SPARE[1], "adam, 1 particle": SPARE[0], "adam, 10 particles": SPARE[4]}
    for contender, _, run in runs_of(found):
        points = [(s, best - e) for s, _, e in run["curve"] if e is not None]
        own = contender == VPNG
        axes.plot(
            [seconds for seconds, _ in points],
            [max(gap, 0.1 * near) for _, gap in points],
            color=styles[contender].colour,
            linewidth=2.2 if own else 1.0,
            alpha=1.0 if own else 0.7,
            zorder=3 if own else 2,
            label=contender,
        )
    axes.axhline(near, color="0.5", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"{name.replace('/', ', ')} ({found['latents']})", fontsize=8)
    axes.tick_params(labelsize=7)
