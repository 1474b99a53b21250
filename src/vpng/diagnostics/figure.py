"""One figure of a diagnosis: the spectrum and the landscape."""

from typing import TYPE_CHECKING

import numpy as np

from vpng.diagnostics.diagnosis import Diagnosis
from vpng.diagnostics.landscape import plane
from vpng.extras import Extra, require
from vpng.plot.look import line_look, look
from vpng.plot.methods import Method

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESOLUTION = 41


def draw(diagnosis: Diagnosis) -> "Figure":
    """The figure, drawn without pyplot: no window, no backend is touched."""
    require("Diagnosis.plot", Extra.PLOT)
    from matplotlib.figure import Figure

    with look():
        figure = Figure(figsize=(10, 4.4))
        left, right = figure.subplots(1, 2)
        _spectrum(left, diagnosis)
        _landscape(right, diagnosis)
        # The look counts while the figure is laid out, not only while it is built.
        figure.draw_without_rendering()
    return figure


def _spectrum(axes: "Axes", diagnosis: Diagnosis) -> None:
    from matplotlib.ticker import MaxNLocator

    metric = diagnosis.spectrum
    positive = metric.eigenvalues[metric.eigenvalues > 0]
    axes.plot(np.arange(1, len(positive) + 1), positive, **line_look(Method.VPNG))
    axes.axhline(diagnosis.damping, color="0.5", linestyle="dotted", label="damping")
    which = "" if metric.complete else f", largest {len(metric.eigenvalues)}"
    rank = f"effective rank {metric.effective_rank:.1f} of {metric.num_parameters}"
    axes.set(
        yscale="log",
        xlabel="eigenvalue",
        ylabel="size, per datum",
        title=f"Spectrum of the metric{which}\n{rank}",
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()


def _landscape(axes: "Axes", diagnosis: Diagnosis) -> None:
    arrows = {
        Method.GRADIENT: diagnosis.gradient.vector,
        Method.NATURAL_GRADIENT: diagnosis.natural_gradient.vector,
        Method.VPNG: diagnosis.vpng.vector,
    }
    axes.set_title("ELBO in the plane of gradient and VPNG")
    if not np.any(diagnosis.gradient.vector) or not np.any(diagnosis.vpng.vector):
        axes.text(0.5, 0.5, "no direction to draw", ha="center", transform=axes.transAxes)
        return
    basis = plane(diagnosis.gradient.vector, diagnosis.vpng.vector)
    step = basis @ diagnosis.vpng.vector
    reach = float(np.linalg.norm(step))
    across, along = (
        np.linspace(centre - 0.9 * reach, centre + 0.9 * reach, RESOLUTION) for centre in step / 2
    )
    heights = diagnosis.landscape.heights(basis, across, along)
    heights = np.ma.masked_invalid(heights)
    if heights.count():
        deficit = np.log10(1.0 + heights.max() - heights)
        axes.contour(across, along, deficit, levels=14, colors="0.75", linewidths=0.8)
    # Directions that coincide are told apart by their lengths; VPNG's is the full step.
    lengths = {Method.GRADIENT: 0.65, Method.NATURAL_GRADIENT: 0.4, Method.VPNG: 1.0}
    for method, vector in arrows.items():
        arrow = basis @ vector
        if not np.any(arrow):
            continue
        arrow = lengths[method] * reach * arrow / np.linalg.norm(arrow)
        colour = line_look(method)["color"]
        axes.annotate(
            "",
            xy=tuple(arrow),
            xytext=(0.0, 0.0),
            arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2.2},
        )
        axes.plot([], [], color=colour, label=method.label)
    axes.plot(0.0, 0.0, "o", color="black", markersize=5)
    axes.set(
        xlabel="along the gradient",
        ylabel="across it, towards VPNG",
        xlim=(across[0], across[-1]),
        ylim=(along[0], along[-1]),
        aspect="equal",
    )
    axes.grid(False)
    axes.legend(loc="upper left")
