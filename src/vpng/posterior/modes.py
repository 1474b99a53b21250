"""Optima of the ELBO from several starts, each of them once."""

import time
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vpng.errors import InputError
from vpng.posterior import programs
from vpng.posterior.fixed_draws import fixed_draws
from vpng.posterior.frame import AbstractFrame, Diagonal, Full, unit_frame
from vpng.posterior.importance import heights_at
from vpng.posterior.linear_response import response
from vpng.posterior.mean_field import Density, Fit, MeanField

RADIUS = 2.0
"""Starts are uniform within it, in unconstrained latents, as NumPyro's."""
CANDIDATES = 64
"""Starts that are looked at for some where the density is finite."""
FIRST_SCALE = 0.1
FAR_BELOW = 20.0
"""Nats below the best optimum at which another one counts for nothing."""


class Mode(NamedTuple):
    """One optimum.

    Attributes:
        frame: location and covariance by linear response, as coordinates.
        loc: location of the factorised approximation.
        scale: its standard deviations.
        elbo: its ELBO.
        exact: whether linear response had a Hessian that is positive definite.
        path: the ELBO on the way.
    """

    frame: AbstractFrame
    loc: Float[np.ndarray, " P"]
    scale: Float[np.ndarray, " P"]
    elbo: float
    exact: bool
    path: Float[np.ndarray, " N"]


def random_starts(
    density: Density, size: int, num_starts: int, rng: np.random.Generator
) -> list[MeanField]:
    """Random places where the log density is finite.

    Raises:
        InputError: where there is none among many.
    """
    dtype = jnp.zeros(()).dtype
    places = rng.uniform(-RADIUS, RADIUS, (CANDIDATES, size)).astype(dtype)
    # The origin is the middle of every support.
    places[0] = 0.0
    finite = places[np.isfinite(heights_at(density, places, CANDIDATES))]
    if not len(finite):
        raise InputError(
            f"model: expected a log density that is finite somewhere, got none among {CANDIDATES} "
            "random values of its latents. Look at the supports of its priors, at the data for "
            "NaN, and at what overflows."
        )
    log_scale = jnp.full(size, np.log(FIRST_SCALE), dtype)
    return [MeanField(jnp.asarray(place), log_scale) for place in finite[:num_starts]]


def optima(
    density: Density,
    starts: list[MeanField],
    *,
    full: bool,
    seed: int,
    until: float,
) -> list[Mode]:
    """The distinct optima from these starts, the best first.

    Factorised first; where matrices are formed, again in the coordinates in which the posterior is
    about standard, which is the best normal approximation with all correlations.

    Raises:
        InputError: where no start leads anywhere.
    """
    size = starts[0].loc.size
    draws = jnp.asarray(fixed_draws(size, seed), starts[0].loc.dtype)
    unit = unit_frame(size, full=full)
    fits = list(_fits(density, unit, draws, starts, until))
    if not fits:
        raise InputError(
            f"model: expected a start that leads to an optimum of the ELBO, got none of "
            f"{len(starts)}: its log density is not finite around them, or has no upper bound."
        )
    modes: list[Mode] = []
    best = min(float(found.loss) for found in fits)
    for found in sorted(fits, key=lambda found: float(found.loss)):
        known = any(_same(mode, np.asarray(found.point.loc)) for mode in modes)
        if not known and float(found.loss) < best + FAR_BELOW:
            modes.append(_mode(density, unit, draws, found))
    if not full:
        return modes
    refined: list[Mode] = []
    for mode in modes:
        better = _refined(density, draws, mode)
        if not any(_same(other, np.asarray(better.frame.centre)) for other in refined):
            refined.append(better)
    return refined


def _fits(
    density: Density,
    frame: AbstractFrame,
    draws: Float[Array, "M P"],
    starts: list[MeanField],
    until: float,
) -> Iterator[Fit]:
    for count, start in enumerate(starts):
        if count and time.monotonic() > until:
            return
        found = programs.run(programs.fit, density, frame, draws, start, batch=len(draws))
        if np.isfinite(found.loss):
            yield jax.device_get(found)


def _mode(density: Density, frame: AbstractFrame, draws: Float[Array, "M P"], found: Fit) -> Mode:
    point = jax.tree.map(jnp.asarray, found.point)
    loc = np.asarray(frame(point.loc))
    size = len(loc)
    constant = 0.5 * size * (1 + np.log(2 * np.pi)) + frame.log_determinant()
    path = constant - found.path[np.isfinite(found.path)]
    elbo = float(constant - found.loss)
    if isinstance(frame, Diagonal):
        scale = np.exp(np.asarray(point.log_scale)) * np.asarray(frame.root)
        return Mode(Diagonal(jnp.asarray(loc), jnp.asarray(scale)), loc, scale, elbo, True, path)
    blocks = programs.run(programs.curvature, density, frame, draws, point, batch=len(draws))
    answer = response(blocks, point)
    root = np.asarray(frame.root, np.float64)
    turned = np.linalg.cholesky(root @ answer.covariance @ root.T)
    scale = np.sqrt((root**2) @ np.exp(2 * np.asarray(point.log_scale, np.float64)))
    new = Full(jnp.asarray(loc), jnp.asarray(turned, draws.dtype))
    return Mode(new, loc, scale, elbo, answer.exact, path)


def _refined(density: Density, draws: Float[Array, "M P"], mode: Mode) -> Mode:
    """The optimum in the coordinates of a mode; the mode itself where none is found."""
    zeros = jnp.zeros(draws.shape[1], draws.dtype)
    start = MeanField(zeros, zeros)
    found = programs.run(programs.fit, density, mode.frame, draws, start, batch=len(draws))
    if not np.isfinite(found.loss):
        return mode
    better = _mode(density, mode.frame, draws, jax.device_get(found))
    path = np.concatenate([mode.path, better.path])
    return better._replace(loc=mode.loc, scale=mode.scale, path=path)


def _same(mode: Mode, loc: Float[np.ndarray, " P"]) -> bool:
    """Whether a location is within a standard deviation of a mode's, in its own coordinates."""
    return float(np.linalg.norm(mode.frame.coordinates(loc[None]))) < 1.0
