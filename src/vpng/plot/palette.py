"""One look for a line everywhere: a colour, a dash and a marker.

Okabe and Ito's colours are told apart by colour-blind readers; dashes and markers in print.
"""

from typing import NamedTuple

from vpng.plot.methods import Method


class Style(NamedTuple):
    """How a line looks.

    Attributes:
        colour: as hexadecimal digits.
        dash: lengths on and off; empty for a solid line.
        marker: in matplotlib's notation.
    """

    colour: str
    dash: tuple[float, ...]
    marker: str


STYLES = {
    Method.GRADIENT.value: Style("#0072B2", (5, 1.5), "o"),
    Method.NATURAL_GRADIENT.value: Style("#E69F00", (1.5, 1.5), "s"),
    Method.VPNG.value: Style("#D55E00", (), "^"),
    Method.VPNG_BLOCK.value: Style("#CC79A7", (8, 2), "D"),
    Method.VPNG_EIGENBASIS.value: Style("#56B4E9", (2, 2), "P"),
    Method.HESSIAN_FREE.value: Style("#009E73", (6, 1.5, 1.5, 1.5), "v"),
}
SPARE = (
    Style("#0072B2", (5, 1.5), "o"),
    Style("#D55E00", (), "^"),
    Style("#009E73", (6, 1.5, 1.5, 1.5), "v"),
    Style("#CC79A7", (8, 2), "D"),
    Style("#56B4E9", (2, 2), "P"),
)
"""For lines that are not methods, by their position."""


def style_of(name: str, position: int = 0) -> Style:
    """The look of a method, or of the line at `position` if it is none."""
    return STYLES.get(name, SPARE[position % len(SPARE)])
