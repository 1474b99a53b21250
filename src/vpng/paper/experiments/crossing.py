"""Where a curve first reaches a level."""

import math
from collections.abc import Iterable


def first_crossing(
    places: Iterable[float | None], values: Iterable[float | None], level: float
) -> float | None:
    """Where rising `values` first reach `level`, interpolated between records; None if never.

    Records without a place or a finite value are passed over.
    """
    before: tuple[float, float] | None = None
    for place, value in zip(places, values, strict=True):
        if place is None or value is None or not math.isfinite(value):
            continue
        if value >= level:
            if before is None or before[1] == value:
                return float(place)
            share = (level - before[1]) / (value - before[1])
            return float(before[0] + share * (place - before[0]))
        before = place, value
    return None
