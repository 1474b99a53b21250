"""Curves over seeds: their mean, and a band of one standard deviation on either side."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MOST_POINTS = 400

Curve = Sequence[float | None]


class Band(NamedTuple):
    """The mean of several curves and their spread.

    Attributes:
        x: where.
        mean: of the curves.
        low: mean less one sample standard deviation; the mean itself for a single curve.
        high: mean and one sample standard deviation.
        count: number of curves.
    """

    x: Float[np.ndarray, " n"]
    mean: Float[np.ndarray, " n"]
    low: Float[np.ndarray, " n"]
    high: Float[np.ndarray, " n"]
    count: int


def band(curves: Sequence[tuple[Curve, Curve]]) -> Band | None:
    """The band of curves (x, y), each over its own increasing x.

    Curves are compared where all of them are: between their latest start and their earliest end,
    by linear interpolation. Numbers that are not finite are left out. None if nothing is left.
    """
    finite = [_finite(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in curves]
    finite = [(x, y) for x, y in finite if x.size]
    if not finite:
        return None
    start, end = max(x[0] for x, _ in finite), min(x[-1] for x, _ in finite)
    places = np.unique(np.concatenate([x for x, _ in finite]))
    places = places[(places >= start) & (places <= end)]
    if not places.size:
        return None
    if places.size > MOST_POINTS:
        kept = np.unique(np.linspace(0, places.size - 1, MOST_POINTS).round().astype(int))
        places = places[kept]
    values = np.stack([np.interp(places, x, y) for x, y in finite])
    mean = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    return Band(places, mean, mean - spread, mean + spread, len(values))


def _finite(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    good = np.isfinite(x) & np.isfinite(y)
    return x[good], y[good]
