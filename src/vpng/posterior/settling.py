"""Whether chains that began at an approximation have arrived at the posterior."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vpng.posterior import programs
from vpng.posterior.frame import AbstractFrame
from vpng.posterior.mean_field import Density
from vpng.posterior.moves import Chains, Moved

TRANSITIONS = 16
"""Of one look: the step size learns in the first half of the first."""
FORGOTTEN = 0.2
"""Correlation of a chain's end with its beginning that still counts as forgotten."""
STEADY = 0.1
"""Standard deviations by which means of two halves may differ, and shares by which deviations."""
STUCK = 0.02
"""Share of chains that may stay where they are."""


class Settled(NamedTuple):
    """What a look at chains found, in the coordinates of their frame.

    Attributes:
        u: the states of the second half of all transitions, by transition and chain.
        heights: their log densities.
        memory: the largest correlation of any coordinate, or of the log density, between the
            beginning and the end, beyond what chance explains.
        drift: the largest difference of means or deviations between the halves, likewise.
        stuck: share of chains that hardly moved.
        effective: the number of independent draws that say as much about the least known mean.
        imprecision: standard error of the least known mean or deviation of a latent as it is shown,
            by all looks that were kept.
    """

    u: Float[np.ndarray, "T C P"]
    heights: Float[np.ndarray, "T C"]
    memory: float
    drift: float
    stuck: float
    effective: float
    imprecision: float = float("nan")

    @property
    def arrived(self) -> bool:
        """Whether nothing speaks against it."""
        return self.shortfall < 1.0

    @property
    def shortfall(self) -> float:
        """By what factor the worst of the checks is missed; below one, none is."""
        missed = (self.memory / FORGOTTEN, self.drift / STEADY, self.stuck / STUCK)
        # Of numpy, for what is not a number is no small one.
        return float(np.max(missed))

    def reasons(self) -> tuple[str, ...]:
        """What speaks against it, in words."""
        said = []
        if not self.memory < FORGOTTEN:
            said.append(
                f"chains moved from the approximation's draws remember them (correlation "
                f"{self.memory:.2f})"
            )
        if not self.drift < STEADY:
            said.append(f"they are still on their way (drift {self.drift:.2f} sd)")
        if not self.stuck < STUCK:
            said.append(f"{self.stuck:.0%} of them are stuck: tails or necks are too narrow")
        return tuple(said)


class Journey(NamedTuple):
    """Chains between two looks.

    Attributes:
        chains: where they are.
        gradients: what all of them evaluated so far.
    """

    chains: Chains
    gradients: float


def begin(u: Float[np.ndarray, "C P"], dtype: jnp.dtype) -> Journey:
    """Chains at draws of the approximation, with the step of a standard normal."""
    step = 1.0 / max(u.shape[1], 1) ** 0.25
    return Journey(Chains(jnp.asarray(u, dtype), jnp.asarray(step, dtype)), 0.0)


def look(
    density: Density, frame: AbstractFrame, journey: Journey, seed: int
) -> tuple[Journey, Settled]:
    """Move the chains on, and say how they do."""
    learning = journey.gradients == 0.0
    rates = np.linspace(1.0, 0.0, TRANSITIONS // 2) if learning else np.zeros(TRANSITIONS // 2)
    adapting = jnp.asarray(np.concatenate([rates, np.zeros(TRANSITIONS // 2)]))
    adapting = adapting.astype(journey.chains.at.dtype)
    moved: Moved = programs.run(
        programs.move,
        density,
        frame,
        journey.chains,
        jax.random.key(seed),
        adapting,
        batch=len(journey.chains.at),
    )
    started = np.asarray(journey.chains.at, np.float64)
    visited = np.asarray(moved.visited, np.float64)
    heights = np.asarray(moved.heights, np.float64)
    found = _judged(started, visited, heights, np.asarray(moved.accepted, np.float64))
    spent = float(moved.gradients) * len(started)
    return Journey(moved.chains, journey.gradients + spent), found


def _judged(
    started: Float[np.ndarray, "C P"],
    visited: Float[np.ndarray, "T C P"],
    heights: Float[np.ndarray, "T C"],
    accepted: Float[np.ndarray, "T C"],
) -> Settled:
    half = len(visited) // 2
    late, count = visited[half:], started.shape[0]
    chance = _largest_by_chance(started.shape[1]) / np.sqrt(count)
    ends = np.column_stack([visited[-1], heights[-1]])
    begins = np.column_stack([started, heights[0]])
    memory = float(np.max(np.abs(_correlations(begins, ends)))) - chance
    means = late.mean(axis=0)
    spread = late.reshape(-1, late.shape[2]).std(axis=0)
    errors = means.std(axis=0) / np.sqrt(count) / spread
    first, second = np.split(late, 2)
    moved = np.abs(first.mean((0, 1)) - second.mean((0, 1))) / spread
    widened = np.abs(first.std((0, 1)) / second.std((0, 1)) - 1)
    drift = float(np.max(np.maximum(moved, widened) - 2 * chance / np.sqrt(half // 2)))
    return Settled(
        late,
        heights[half:],
        memory,
        drift,
        float(np.mean(accepted.mean(axis=0) < 0.1)),
        float(min(1 / np.max(errors) ** 2, late.shape[0] * count)),
    )


def _correlations(a: Float[np.ndarray, "C K"], b: Float[np.ndarray, "C K"]) -> np.ndarray:
    a, b = a - a.mean(axis=0), b - b.mean(axis=0)
    scale = np.sqrt(np.sum(a**2, axis=0) * np.sum(b**2, axis=0))
    return np.sum(a * b, axis=0) / np.where(scale > 0, scale, 1.0)


def _largest_by_chance(size: int) -> float:
    """About how many standard errors the largest of so many estimates is off."""
    return float(np.sqrt(2 * np.log(2 * size + 2)))
