"""Differences between two groups of runs, with the noise of the seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import stats

Numbers = Sequence[float] | Float[np.ndarray, " n"]


class Interval(NamedTuple):
    """An estimate with its 95 percent interval.

    Attributes:
        value: the estimate.
        low: lower end; None if there are too few runs to say.
        high: upper end; None if there are too few runs to say.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def beyond_noise(self) -> bool | None:
        """Whether zero is outside of the interval; None if there is none."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0.0 or self.high < 0.0


def difference(ours: Numbers, theirs: Numbers) -> Interval:
    """mean(ours) - mean(theirs) with Welch's interval.

    With variances s^2 and sizes n of the two groups the standard error is sqrt(s_1^2 / n_1 +
    s_2^2 / n_2), and the degrees of freedom are Satterthwaite's. Needs two runs in each group.
    """
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    value = float(a.mean() - b.mean())
    if min(a.size, b.size) < 2:
        return Interval(value, None, None)
    parts = np.array([a.var(ddof=1) / a.size, b.var(ddof=1) / b.size])
    error = float(np.sqrt(parts.sum()))
    if error == 0.0:
        return Interval(value, value, value)
    freedom = parts.sum() ** 2 / (parts**2 / (np.array([a.size, b.size]) - 1)).sum()
    reach = float(stats.t.ppf(0.975, freedom)) * error
    return Interval(value, value - reach, value + reach)


def factor(ours: Numbers, theirs: Numbers) -> Interval:
    """How many times larger `theirs` is than `ours`: Welch's interval of the logarithms."""
    value, *ends = difference(np.log(theirs), np.log(ours))
    low, high = (None if end is None else float(np.exp(end)) for end in ends)
    return Interval(float(np.exp(value)), low, high)
