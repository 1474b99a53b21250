"""The covariance of the latents as NUTS takes it: dense, in blocks or a diagonal, by size."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vpng.posterior.approximate import Draws
from vpng.posterior.density import Latent, LogDensity
from vpng.posterior.frame import AbstractFrame, Full

MOST_DENSE = 400
"""Latents in one matrix, for the sampler factorises it and multiplies by it in every step."""

Metric = Float[np.ndarray, "..."] | dict[tuple[str, ...], np.ndarray]
"""A matrix, its diagonal, or either for each group of sites."""


def metric_of(density: LogDensity, frame: AbstractFrame, draws: Draws) -> Metric:
    """The covariance of draws, with that of an approximation for as many draws as latents.

    Beyond `MOST_DENSE` latents the sites of few entries share a matrix, and the rest a diagonal.
    """
    if isinstance(frame, Full):
        return _shrunk(draws.z, draws, frame.covariance())
    few, many = _split(density)
    deviations = density.unflatten(jnp.asarray(draws.moments()[1]))
    variances = {name: np.asarray(value).reshape(-1) ** 2 for name, value in deviations.items()}
    if not few:
        return np.concatenate([variances[latent.name] for latent in many])
    z = density.unflatten(jnp.asarray(draws.z))
    block = np.concatenate([np.asarray(z[site.name]).reshape(len(draws.z), -1) for site in few], 1)
    diagonal = np.concatenate([variances[latent.name] for latent in few])
    blocks: dict[tuple[str, ...], np.ndarray] = {
        tuple(latent.name for latent in few): _shrunk(block, draws, np.diag(diagonal))
    }
    return blocks | {(latent.name,): variances[latent.name] for latent in many}


def fitted_metric(frame: AbstractFrame) -> Metric:
    """The covariance of an approximation."""
    return frame.covariance() if isinstance(frame, Full) else frame.scales() ** 2


def _split(density: LogDensity) -> tuple[list[Latent], list[Latent]]:
    """The sites that share a matrix, smallest first, and the others."""
    few: list[Latent] = []
    many: list[Latent] = []
    entries = 0
    for latent in sorted(density.latents, key=lambda latent: int(np.prod(latent.shape))):
        entries += int(np.prod(latent.shape))
        (few if entries <= MOST_DENSE else many).append(latent)
    return sorted(few), sorted(many)


def _shrunk(
    z: Float[np.ndarray, "S K"], draws: Draws, prior: Float[np.ndarray, "K K"]
) -> Float[np.ndarray, "K K"]:
    """A covariance of few draws is ill-conditioned; the prior counts as one draw per latent."""
    size = z.shape[1]
    seen = np.cov(z.astype(np.float64), rowvar=False, aweights=draws.shares).reshape(size, size)
    return (draws.effective * seen + size * prior) / (draws.effective + size)
