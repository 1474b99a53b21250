"""One figure of a posterior: marginals, the way of the ELBO, the importance weights."""

from typing import TYPE_CHECKING

import numpy as np

from vpng.extras import Extra, require
from vpng.plot.look import look
from vpng.plot.methods import Method
from vpng.plot.palette import STYLES
from vpng.posterior.approximate import Found, Guide

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_MARGINALS = 4
OURS = STYLES[Method.VPNG.value].colour
THEIRS = STYLES[Method.GRADIENT.value].colour


def draw(found: Found, guide: Guide, labels: list[str]) -> "Figure":
    """The figure, drawn without pyplot: no window, no backend is touched.

    Args:
        found: what was found.
        guide: the approximation that is compared with.
        labels: of the latents.
    """
    require("Posterior.plot", Extra.PLOT)
    from matplotlib.figure import Figure

    mean, sd = found.draws.moments()
    # Where the approximation is worst there is most to see.
    off = np.abs(np.log(guide.scale / sd)) + np.abs(guide.loc - mean) / sd
    chosen = np.argsort(-off)[:MOST_MARGINALS]
    with look():
        figure = Figure(figsize=(11.0, 5.6))
        grid = figure.add_gridspec(2, 1)
        above, below = (figure.add_subfigure(grid[place]) for place in range(2))
        panels = np.ravel(above.subplots(1, len(chosen)))
        for axes, place in zip(panels, chosen, strict=True):
            _marginal(axes, found, guide, place, labels[place])
        panels[0].legend(fontsize=7, loc="upper left", handlelength=1.2)
        left, right = below.subplots(1, 2)
        _path(left, found)
        _weights(right, found)
        # The look counts while the figure is laid out, not only while it is built.
        figure.draw_without_rendering()
    return figure


def _marginal(axes: "Axes", found: Found, guide: Guide, place: int, label: str) -> None:
    draws, frame = found.draws, found.modes[0].frame
    z = draws.z[:, place].astype(np.float64)
    mean, sd = (value[place] for value in draws.moments())
    axes.hist(
        z, bins=60, range=(mean - 4 * sd, mean + 4 * sd), weights=draws.shares, density=True,
        color="0.82", label="draws",
    )  # fmt: skip
    grid = np.linspace(mean - 4 * sd, mean + 4 * sd, 200)
    curves = (
        ("guide", guide.loc[place], guide.scale[place], THEIRS, "dashed"),
        ("linear response", float(frame.centre[place]), frame.scales()[place], OURS, "solid"),
    )
    for name, loc, scale, colour, dash in curves:
        height = np.exp(-0.5 * ((grid - loc) / scale) ** 2) / (scale * np.sqrt(2 * np.pi))
        axes.plot(grid, height, color=colour, linestyle=dash, label=name)
    top = 1.9 / (sd * np.sqrt(2 * np.pi))
    axes.set(title=label, yticks=[], ylim=(0, top))
    axes.title.set_fontsize(9)


def _path(axes: "Axes", found: Found) -> None:
    for mode, share in zip(found.modes, found.shares, strict=True):
        gap = mode.elbo - mode.path
        axes.plot(np.maximum(gap, 1e-4), color=OURS, alpha=min(0.3 + 0.7 * float(share), 1.0))
    axes.set(
        yscale="log", xlabel="Newton step", ylabel="nats below the optimum",
        title="The ELBO's path; again in the coordinates of the posterior",
    )  # fmt: skip
    axes.title.set_fontsize(9)


def _weights(axes: "Axes", found: Found) -> None:
    weights = np.sort(found.weighted.shares)[::-1] * len(found.weighted.z)
    ranks = np.arange(1, len(weights) + 1)
    axes.plot(ranks, weights, color=OURS)
    axes.axhline(1.0, color="0.5", linestyle="dotted")
    axes.set(
        xscale="log", yscale="log", xlabel="draw, heaviest first", ylabel="weight over the mean",
        ylim=(max(weights[-1], 1e-4), None),
        title=f"Importance weights: k-hat {found.weighted.k_hat:.2f}, "
        f"{found.weighted.effective:.0f} effective of {len(weights)}",
    )  # fmt: skip
    axes.title.set_fontsize(9)
