"""Figures: one look for all, saved as PNG and SVG."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vpng.experiments.methods import Method
from vpng.experiments.results import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe-Ito colours, told apart by colour-blind readers; the dashes tell them apart in print.
COLOURS = {
    Method.GRADIENT: "#0072B2",
    Method.NATURAL_GRADIENT: "#E69F00",
    Method.VPNG: "#D55E00",
    Method.VPNG_BLOCK: "#CC79A7",
    Method.HESSIAN_FREE: "#009E73",
}
DASHES = {
    Method.GRADIENT: (0, (5, 1.5)),
    Method.NATURAL_GRADIENT: (0, (1.5, 1.5)),
    Method.VPNG: "solid",
    Method.VPNG_BLOCK: (0, (8, 2)),
    Method.HESSIAN_FREE: (0, (6, 1.5, 1.5, 1.5)),
}


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib without a display and with the project's look."""
    import matplotlib as mpl

    mpl.use("Agg")
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
