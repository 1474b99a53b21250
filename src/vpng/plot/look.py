"""The look of all figures, and how they are saved: PNG and SVG."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpng.plot.palette import style_of
from vpng.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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

    settings: dict[Any, Any] = {
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
