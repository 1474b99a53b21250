"""The table of a posterior: one row for every entry of every site, in constrained space."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from vpng.posterior.approximate import Draws

MOST_ROWS = 40
"""That are printed."""
INTERVAL = (0.05, 0.95)


class Row(NamedTuple):
    """One quantity.

    Attributes:
        name: its name, with the index of its entry.
        mean: its mean.
        sd: its standard deviation.
        lower: its quantile of five percent.
        upper: its quantile of 95 percent.
        error: standard error of the mean, by the number of draws and their weights.
    """

    name: str
    mean: float
    sd: float
    lower: float
    upper: float
    error: float


@dataclass(frozen=True)
class Summary:
    """All rows; printed, a table.

    Attributes:
        rows: by name.
    """

    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        """The row of a quantity."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __str__(self) -> str:
        shown = self.rows[:MOST_ROWS]
        width = max(8, *(len(row.name) for row in shown))
        lines = [f"{'':{width}} {'mean':>10} {'sd':>10} {'5%':>10} {'95%':>10} {'error':>10}"]
        for name, *numbers in shown:
            lines.append(f"{name:{width}} " + " ".join(f"{value:>10.4g}" for value in numbers))
        if len(self.rows) > len(shown):
            lines.append(f"... and {len(self.rows) - len(shown)} more")
        return "\n".join(lines)


def summarise(values: Mapping[str, Float[np.ndarray, "S ..."]], draws: Draws) -> Summary:
    """The rows of all sites.

    Args:
        values: of every site at every draw.
        draws: the draws.
    """
    return Summary(tuple(row for name in values for row in _rows(name, values[name], draws)))


def _rows(name: str, value: Float[np.ndarray, "S ..."], draws: Draws) -> Iterator[Row]:
    shape = value.shape[1:]
    flat = value.reshape(len(value), -1).astype(np.float64)
    mean = draws.shares @ flat
    sd = np.sqrt(draws.shares @ (flat - mean) ** 2)
    lower, upper = weighted_quantiles(flat, draws.shares, INTERVAL)
    error = _errors(flat, mean, draws)
    for place, index in enumerate(np.ndindex(*shape)):
        label = name + (f"[{', '.join(map(str, index))}]" if shape else "")
        numbers = (mean[place], sd[place], lower[place], upper[place], error[place])
        yield Row(label, *map(float, numbers))


def _errors(
    flat: Float[np.ndarray, "S K"], mean: Float[np.ndarray, " K"], draws: Draws
) -> Float[np.ndarray, " K"]:
    """Standard errors of means: of weighted draws, or over chains, which know nothing of others."""
    if draws.chains is None:
        return np.sqrt((draws.shares**2) @ (flat - mean) ** 2)
    by_chain = flat.reshape(-1, draws.chains, flat.shape[1]).mean(axis=0)
    return by_chain.std(axis=0, ddof=1) / np.sqrt(draws.chains)


def weighted_quantiles(
    flat: Float[np.ndarray, "S K"], shares: Float[np.ndarray, " S"], levels: tuple[float, ...]
) -> Float[np.ndarray, "L K"]:
    """Quantiles of weighted draws: where the weights of smaller draws add up to a level."""
    order = np.argsort(flat, axis=0)
    below = np.cumsum(shares[order], axis=0)
    places = np.stack([np.argmax(below >= level, axis=0) for level in levels])
    return np.take_along_axis(np.take_along_axis(flat, order, axis=0), places, axis=0)
