"""Optima of the ELBO from several starts, each of them once."""

import time
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vpng.errors import InputError
from vpng.posterior import programs
from vpng.posterior.cost import Cost
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
FEW = 1
"""Chunk of draws under which an optimum is first approached."""
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
    finite = places[np.isfinite(heights_at(density, places))]
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
) -> tuple[list[Mode], Cost]:
    """The distinct optima from these starts, the best first, and what they cost.

    Factorised first, under few draws and then under all; a start that ends under few draws where
    another one ended goes no further. Where matrices are formed, again in the coordinates in which
    the posterior is about standard, which is the best normal approximation with all correlations.

    Raises:
        InputError: where no start leads anywhere.
    """
    search = _Search(density, jnp.asarray(fixed_draws(starts[0].loc.size, seed)), full=full)
    modes: list[Mode] = []
    for count, start in enumerate(starts):
        if count and modes and time.monotonic() > until:
            break
        found = search.from_start(start, modes)
        if found is not None:
            modes.append(found)
    if not modes:
        raise InputError(
            f"model: expected a start that leads to an optimum of the ELBO, got none of "
            f"{len(starts)}: its log density is not finite around them, or has no upper bound."
        )
    best = max(mode.elbo for mode in modes)
    near = sorted((mode for mode in modes if mode.elbo > best - FAR_BELOW), key=lambda m: -m.elbo)
    if not full:
        return near, search.cost
    refined: list[Mode] = []
    for mode in near:
        better = search.refined(mode)
        if not any(_same(other, np.asarray(better.frame.centre)) for other in refined):
            refined.append(better)
    return refined, search.cost


class _Search:
    """The way to optima, with its cost."""

    def __init__(self, density: Density, draws: Float[Array, "C M P"], *, full: bool) -> None:
        self.density = density
        self.unit = unit_frame(draws.shape[-1], full=full)
        self.draws = draws.astype(self.unit.centre.dtype)
        self.cost = Cost()

    def from_start(self, start: MeanField, modes: list[Mode]) -> Mode | None:
        """The optimum that a start leads to; None if there is none, or it is known."""
        rough = self._fit(self.unit, start, FEW)
        if np.isfinite(rough.loss):
            start = rough.point
            if any(_same(mode, np.asarray(self.unit(start.loc))) for mode in modes):
                return None
        found = self._fit(self.unit, start, len(self.draws))
        if not np.isfinite(found.loss):
            return None
        if any(_same(mode, np.asarray(self.unit(found.point.loc))) for mode in modes):
            return None
        return self._mode(self.unit, found, FEW)

    def refined(self, mode: Mode) -> Mode:
        """The optimum in the coordinates of a mode; the mode itself where none is found."""
        zeros = jnp.zeros(self.draws.shape[-1], self.draws.dtype)
        found = self._fit(mode.frame, MeanField(zeros, zeros), len(self.draws))
        if not np.isfinite(found.loss):
            return mode
        better = self._mode(mode.frame, found, len(self.draws))
        path = np.concatenate([mode.path, better.path])
        return better._replace(loc=mode.loc, scale=mode.scale, path=path)

    def _fit(self, frame: AbstractFrame, start: MeanField, count: int) -> Fit:
        each = self.draws.shape[1]
        found = programs.run(
            programs.fit, self.density, frame, self.draws, jnp.asarray(count), start, batch=each
        )
        self.cost = self.cost.plus(found.cost(count * each))
        return found

    def _mode(self, frame: AbstractFrame, found: Fit, count: int) -> Mode:
        point = found.point
        loc = np.asarray(frame(point.loc))
        size = len(loc)
        constant = 0.5 * size * (1 + np.log(2 * np.pi)) + frame.log_determinant()
        path = np.asarray(found.path)
        path = constant - path[np.isfinite(path)]
        elbo = float(constant - found.loss)
        if isinstance(frame, Diagonal):
            scale = np.exp(np.asarray(point.log_scale)) * np.asarray(frame.root)
            new = Diagonal(jnp.asarray(loc), jnp.asarray(scale))
            return Mode(new, loc, scale, elbo, True, path)
        each = self.draws.shape[1]
        blocks = programs.run(
            programs.curvature, self.density, frame, self.draws, jnp.asarray(count), point, batch=1
        )
        self.cost = self.cost.plus(Cost(products=count * each * size))
        answer = response(blocks, point)
        root = np.asarray(frame.root, np.float64)
        turned = np.linalg.cholesky(root @ answer.covariance @ root.T)
        scale = np.sqrt((root**2) @ np.exp(2 * np.asarray(point.log_scale, np.float64)))
        new = Full(jnp.asarray(loc), jnp.asarray(turned, self.draws.dtype))
        return Mode(new, loc, scale, elbo, answer.exact, path)


def _same(mode: Mode, loc: Float[np.ndarray, " P"]) -> bool:
    """Whether a location is within a standard deviation of a mode's, in its own coordinates."""
    return float(np.linalg.norm(mode.frame.coordinates(loc[None]))) < 1.0
