"""Importance weights whose tail is smoothed by a generalised Pareto distribution (PSIS).

Vehtari, Simpson, Gelman, Yao and Gabry (2024), with the estimator of Zhang and Stephens (2009).
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

FEWEST_IN_TAIL = 5
"""Weights that a tail is fitted to, at least."""


class Smoothed(NamedTuple):
    """Importance weights after smoothing.

    Attributes:
        log_weights: on the scale of the raw ones; those of the tail are replaced by the expected
            order statistics of the distribution fitted to them.
        k_hat: the shape of the tail: moments of the weights above 1 / k-hat do not exist. NaN where
            too few weights differ.
    """

    log_weights: Float[np.ndarray, " S"]
    k_hat: float


def smoothed(log_weights: Float[np.ndarray, " S"]) -> Smoothed:
    """The weights with a smoothed tail; a draw where the density is not finite counts for nothing.

    Args:
        log_weights: log p(x, z) - log q(z) at draws z ~ q.
    """
    raw = np.asarray(log_weights, np.float64)
    raw = np.where(np.isnan(raw), -np.inf, raw)
    top = raw.max()
    if not np.isfinite(top):
        return Smoothed(raw, math.nan)
    weights = np.exp(raw - top)
    order = np.argsort(weights)
    length = math.ceil(min(0.2 * weights.size, 3.0 * math.sqrt(weights.size)))
    cutoff = max(weights[order[-length - 1]], np.finfo(float).tiny)
    tail = order[weights[order] > cutoff]
    if tail.size < FEWEST_IN_TAIL:
        return Smoothed(raw, math.nan)
    shape, scale = pareto_fit(weights[tail] - cutoff)
    ranks = (np.arange(tail.size) + 0.5) / tail.size
    expected = cutoff + scale * _quantiles(shape, ranks)
    result = raw.copy()
    result[tail] = top + np.log(np.minimum(expected, 1.0))
    return Smoothed(result, shape)


def pareto_fit(exceedances: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """The shape and the scale of a generalised Pareto distribution, for sorted exceedances.

    Zhang and Stephens average over a profile of the likelihood in b = -shape / scale. The shape is
    then drawn a little towards a half, as if ten more exceedances had said so.
    """
    x = np.asarray(exceedances, np.float64)
    count = x.size
    points = 30 + int(math.sqrt(count))
    quartile = x[int(count / 4 + 0.5) - 1]
    grid = 1 / x[-1] + (1 - np.sqrt(points / (np.arange(points) + 0.5))) / (3 * quartile)
    shapes = np.mean(np.log1p(-grid[:, None] * x), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        profile = count * (np.log(-grid / shapes) - shapes - 1)
    weights = np.exp(profile - np.nanmax(profile))
    b = np.nansum(weights * grid) / np.nansum(weights)
    shape = float(np.mean(np.log1p(-b * x)))
    return (count * shape + 10 * 0.5) / (count + 10), -shape / b


def reliable_below(num_draws: int) -> float:
    """The k-hat below which so many draws give estimates to rely on."""
    return min(1 - 1 / math.log10(num_draws), 0.7)


def _quantiles(shape: float, ranks: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    if abs(shape) < 1e-12:
        return -np.log1p(-ranks)
    return np.expm1(-shape * np.log1p(-ranks)) / shape
