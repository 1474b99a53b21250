"""Draws of normal approximations, weighted to the posterior; and the evidence."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.special import logsumexp

from vpng.numerics.pareto import reliable_below, smoothed
from vpng.posterior import programs
from vpng.posterior.frame import AbstractFrame
from vpng.posterior.mean_field import Density

BLOCK = 64
"""Draws whose heights are found by one call."""


class Weighted(NamedTuple):
    """Draws of a mixture of normal distributions with their importance weights.

    Attributes:
        z: the draws.
        mode: which of the distributions each is from; each has the same number.
        heights: log p(x, z).
        log_weights: smoothed, log p(x, z) - log q(z).
        k_hat: the shape of their tail.
    """

    z: Float[np.ndarray, "S P"]
    mode: Int[np.ndarray, " S"]
    heights: Float[np.ndarray, " S"]
    log_weights: Float[np.ndarray, " S"]
    k_hat: float

    @property
    def shares(self) -> Float[np.ndarray, " S"]:
        """The weights, with sum one."""
        return np.exp(self.log_weights - logsumexp(self.log_weights))

    @property
    def effective(self) -> float:
        """The number of independent draws that say as much."""
        return effective_number(self.shares)

    @property
    def reliable(self) -> bool:
        """Whether estimates by these weights are to be relied on; equal ones are the best."""
        spread = np.ptp(self.log_weights)
        if math.isnan(self.k_hat):
            return bool(np.isfinite(spread) and spread < 1.0)
        return self.k_hat < reliable_below(len(self.z))

    def log_evidence(self) -> tuple[float, float]:
        """Log p(x) and its standard error, which counts only where the weights are reliable."""
        count = len(self.log_weights)
        mean = float(np.asarray(logsumexp(self.log_weights))) - math.log(count)
        ratios = np.exp(self.log_weights - mean)
        return mean, float(np.std(ratios) / math.sqrt(count))

    def shares_of_modes(self, num_modes: int) -> Float[np.ndarray, " K"]:
        """The weight of each distribution's draws."""
        return np.bincount(self.mode, weights=self.shares, minlength=num_modes)


def effective_number(shares: Float[np.ndarray, " S"]) -> float:
    """Kish's: one over the sum of squared weights."""
    return float(1 / np.sum(shares**2))


def imprecision(
    values: Mapping[str, Float[np.ndarray, "S ..."]],
    shares: Float[np.ndarray, " S"],
    chains: int | None = None,
) -> float:
    """The largest standard error of a mean or deviation, in units of the deviation.

    Args:
        values: of every quantity at every draw.
        shares: weights of the draws, with sum one.
        chains: number of chains that the draws are the states of, for those know nothing of each
            other; None for independent draws.
    """
    worst = 0.0
    for value in values.values():
        flat = value.reshape(len(shares), -1).astype(np.float64)
        off = flat - shares @ flat
        variance = shares @ off**2
        mean = _error(off, shares, chains) / np.sqrt(variance)
        deviation = _error(off**2 - variance, shares, chains) / (2 * variance)
        worst = max(worst, float(np.max(mean)), float(np.max(deviation)))
    return worst


def _error(
    off: Float[np.ndarray, "S K"], shares: Float[np.ndarray, " S"], chains: int | None
) -> Float[np.ndarray, " K"]:
    """The standard error of a mean of quantities that are zero on average."""
    if chains is None:
        return np.sqrt(shares**2 @ off**2)
    by_chain = (shares[:, None] * off).reshape(-1, chains, off.shape[1]).sum(axis=0)
    return np.sqrt(np.sum(by_chain**2, axis=0))


def log_mixture(
    frames: Sequence[AbstractFrame], z: Float[np.ndarray, "S P"]
) -> Float[np.ndarray, " S"]:
    """The log density of the even mixture of normal distributions."""
    densities = [frame.log_prob(z) for frame in frames]
    return np.asarray(logsumexp(densities, axis=0)) - math.log(len(frames))


def weigh(
    density: Density, frames: Sequence[AbstractFrame], rng: np.random.Generator, num_draws: int
) -> Weighted:
    """As many draws of every normal distribution, weighted against their mixture."""
    dtype = frames[0].centre.dtype
    size = frames[0].centre.size
    each = num_draws // len(frames)
    parts = []
    for frame in frames:
        u = jnp.asarray(rng.standard_normal((each, size)), dtype)
        parts.append(np.asarray(frame(u)))
    z = np.concatenate(parts)
    heights = heights_at(density, z)
    smooth = smoothed(heights - log_mixture(frames, z))
    mode = np.repeat(np.arange(len(frames)), each)
    return Weighted(z, mode, heights, smooth.log_weights, smooth.k_hat)


def heights_at(density: Density, z: Float[np.ndarray, "S P"]) -> Float[np.ndarray, " S"]:
    """Log densities, a block at a time; minus infinity where they are not finite."""
    # The last block is filled up: one program for any number.
    filled = np.concatenate([z, np.repeat(z[-1:], -len(z) % BLOCK, axis=0)])
    found = [
        np.asarray(programs.run(programs.heights, density, jnp.asarray(block), batch=BLOCK))
        for block in filled.reshape(-1, BLOCK, z.shape[1])
    ]
    values = np.concatenate(found).astype(np.float64)[: len(z)]
    return np.where(np.isfinite(values), values, -np.inf)


def bridge(
    at_approximation: Float[np.ndarray, " S"],
    at_posterior: Float[np.ndarray, " T"],
    tries: int = 50,
) -> float:
    """The log evidence by bridge sampling (Meng and Wong 1996).

    Args:
        at_approximation: log p(x, z) - log q(z) at draws of q.
        at_posterior: the same at draws of the posterior.
        tries: of the fixed point that the best bridge is.
    """
    first, second = np.log(len(at_approximation)), np.log(len(at_posterior))
    value = float(np.median(at_posterior))
    for _ in range(tries):
        above = at_approximation - np.logaddexp(second + at_approximation, first + value)
        below = -np.logaddexp(second + at_posterior, first + value)
        last, value = value, float(logsumexp(above) - first - logsumexp(below) + second)
        if abs(value - last) < 1e-8:
            break
    return value
