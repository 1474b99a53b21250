"""From a log density to a posterior: optima, weights, chains where weights fail, a verdict."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from vpng.checks import finite_scalar, positive_integer
from vpng.errors import InputError, expected
from vpng.posterior import programs
from vpng.posterior.cost import Cost
from vpng.posterior.density import LogDensity
from vpng.posterior.frame import AbstractFrame
from vpng.posterior.importance import Weighted, bridge, imprecision, log_mixture, weigh
from vpng.posterior.mean_field import MeanField
from vpng.posterior.modes import CANDIDATES, Mode, optima, random_starts
from vpng.posterior.settling import Settled, begin, look
from vpng.posterior.verdict import Corrected, SeveralModes, UseIt, UseNUTS, Verdict
from vpng.runtime.blas_threads import limit_blas_threads

NUM_DRAWS = 8192
ENOUGH = 1000.0
"""Effective draws: means to 0.03 standard deviations, deviations to two percent."""
PRECISE = 0.04
"""Standard error of weighted means and deviations, as shares of a deviation."""
NUM_CHAINS = 512
MOST_LOOKS = 12
"""At chains that do not arrive: by then NUTS would have."""
IDLE_LOOKS = 2
"""In a row that bring chains no nearer: more of the same will not."""
NEARER = 0.9
"""Share of the shortfall that is nearer."""
PRESENT = 0.01
"""Weight of a mode that counts."""
NEAR = 0.1
"""Standard deviations of a mean, and shares of a deviation, by which a guide may be off."""


@dataclass(frozen=True)
class Budget:
    """What may be spent.

    Attributes:
        seconds: after which nothing more is begun.
        max_latents: most for which a matrix of all of them is formed.
        num_starts: starts in search of several modes.
        seed: of everything random.
    """

    seconds: float = 60.0
    max_latents: int = 400
    num_starts: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        finite_scalar("seconds", self.seconds, minimum=0.0, strict=True)
        positive_integer("max_latents", self.max_latents)
        positive_integer("num_starts", self.num_starts)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise expected("seed", "a whole number of at least 0", repr(self.seed))


class Guide(NamedTuple):
    """What a guide of the user's says about every latent.

    Attributes:
        loc: its means.
        scale: its standard deviations.
    """

    loc: Float[np.ndarray, " P"]
    scale: Float[np.ndarray, " P"]


class Draws(NamedTuple):
    """Draws of the posterior as well as they are to be had.

    Attributes:
        z: in unconstrained latents.
        heights: log p(x, z).
        shares: their weights, with sum one.
        effective: number of independent draws that say as much about the least known mean.
        chains: number of chains that they are the states of, transition by transition; None for
            independent draws.
    """

    z: Float[np.ndarray, "S P"]
    heights: Float[np.ndarray, " S"]
    shares: Float[np.ndarray, " S"]
    effective: float
    chains: int | None = None

    def moments(self) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        """Weighted means and standard deviations."""
        z = self.z.astype(np.float64)
        mean = self.shares @ z
        return mean, np.sqrt(self.shares @ (z - mean) ** 2)


class Evidence(NamedTuple):
    """Log p(x).

    Attributes:
        value: by importance weights, or by bridge sampling where chains were moved.
        error: its standard error; NaN where neither is to be relied on.
    """

    value: float
    error: float


class Found(NamedTuple):
    """Everything that was found out about a posterior.

    Attributes:
        modes: distinct optima, the best first.
        shares: weight of each.
        draws: of the posterior.
        weighted: draws of the approximation and their importance weights.
        evidence: log p(x).
        settled: the last look at moved chains; None where weights were enough.
        verdict: what to make of it.
        cost: evaluations of the log density.
        seconds: that it took.
        seed: of the draws under which the optima were found.
    """

    modes: tuple[Mode, ...]
    shares: Float[np.ndarray, " K"]
    draws: Draws
    weighted: Weighted
    evidence: Evidence
    settled: Settled | None
    verdict: Verdict
    cost: Cost
    seconds: float
    seed: int


def approximate(density: LogDensity, budget: Budget, guide: Guide | None = None) -> Found:
    """The posterior of a log density.

    Args:
        density: log p(x, z).
        budget: what may be spent.
        guide: where to start instead of at random, and what to compare with.

    Raises:
        InputError: for a density without second derivatives, or one that is finite nowhere.
    """
    try:
        return _approximate(density, budget, guide)
    except TypeError as problem:
        if "custom_vjp" not in str(problem):
            raise
        raise InputError(
            "model: expected a log density with second derivatives, got a part that has first "
            "ones in reverse mode alone (jax.custom_vjp), as solvers of differential equations "
            "do. Write that part with jax.lax.scan, or sample with NUTS."
        ) from problem


def _approximate(density: LogDensity, budget: Budget, guide: Guide | None) -> Found:
    began = time.monotonic()
    limit_blas_threads()
    until = began + budget.seconds
    rng = np.random.default_rng(budget.seed)
    if guide is None:
        starts = random_starts(density, density.size, budget.num_starts, rng)
    else:
        dtype = jnp.zeros(()).dtype
        starts = [MeanField(jnp.asarray(guide.loc, dtype), jnp.asarray(np.log(guide.scale), dtype))]
    full = density.size <= budget.max_latents
    modes, cost = optima(density, starts, full=full, seed=budget.seed, until=until)
    weighted = weigh(density, [mode.frame for mode in modes], rng, NUM_DRAWS)
    shares = weighted.shares_of_modes(len(modes))
    cost = cost.plus(Cost(values=len(weighted.z) + CANDIDATES))
    settled = None
    if _enough(density, weighted):
        draws = Draws(weighted.z, weighted.heights, weighted.shares, weighted.effective)
        evidence = Evidence(*weighted.log_evidence())
    else:
        settled, gradients, draws = _moved(density, modes, shares, rng, until)
        cost = cost.plus(Cost(gradients=gradients))
        evidence = _bridged(modes, weighted, settled, draws)
    return Found(
        tuple(modes),
        shares,
        draws,
        weighted,
        evidence,
        settled,
        _verdict(modes, shares, weighted, settled, draws, guide),
        cost,
        time.monotonic() - began,
        budget.seed,
    )


def _enough(density: LogDensity, weighted: Weighted) -> bool:
    """Whether weights are the answer: reliable, and precise for every latent as it is shown.

    One heavy draw far out may carry a deviation while k-hat and the number of draws look good.
    """
    if not weighted.reliable or weighted.effective < ENOUGH:
        return False
    return imprecision(_shown(density, weighted.z), weighted.shares) < PRECISE


def _shown(density: LogDensity, z: Float[np.ndarray, "S P"]) -> dict[str, np.ndarray]:
    """The latents at draws as they are shown."""
    values = programs.run(programs.constrained, density, jnp.asarray(z), batch=len(z))
    return {latent.name: np.asarray(values[latent.name]) for latent in density.latents}


def _moved(
    density: LogDensity,
    modes: Sequence[Mode],
    shares: Float[np.ndarray, " K"],
    rng: np.random.Generator,
    until: float,
) -> tuple[Settled, float, Draws]:
    """Chains moved until they have arrived or the time is up; of the heaviest mode's frame."""
    frame = modes[int(np.argmax(shares))].frame
    counts = rng.multinomial(NUM_CHAINS, shares / shares.sum())
    parts = [
        np.asarray(mode.frame(jnp.asarray(rng.standard_normal((n, density.size)))))
        for mode, n in zip(modes, counts, strict=True)
    ]
    journey = begin(frame.coordinates(np.concatenate(parts)), frame.centre.dtype)
    kept: list[Settled] = []
    best, idle, effective = np.inf, 0, 0.0
    for seed in range(MOST_LOOKS):
        journey, settled = look(density, frame, journey, seed)
        # What was seen before a look that is not settled is no draw of the posterior.
        kept = [*kept, settled] if settled.arrived else [settled]
        effective = sum(each.effective for each in kept)
        nearer = settled.shortfall < NEARER * best
        best, idle = min(best, settled.shortfall), 0 if nearer or settled.arrived else idle + 1
        off = _imprecision(density, frame, kept) if settled.arrived else np.inf
        if (
            (off < PRECISE and effective >= ENOUGH)
            or idle == IDLE_LOOKS
            or time.monotonic() > until
        ):
            break
    settled = settled._replace(imprecision=off)
    u = np.concatenate([each.u for each in kept]).reshape(-1, density.size)
    z = np.asarray(frame(jnp.asarray(u, frame.centre.dtype)))
    heights = np.concatenate([each.heights for each in kept]).reshape(-1)
    draws = Draws(z, heights, np.full(len(z), 1 / len(z)), effective, NUM_CHAINS)
    return settled, journey.gradients, draws


def _imprecision(density: LogDensity, frame: AbstractFrame, kept: Sequence[Settled]) -> float:
    """Of the latents as they are shown, by all states that were kept."""
    looks = [
        _shown(
            density,
            np.asarray(frame(jnp.asarray(each.u, frame.centre.dtype))).reshape(-1, density.size),
        )
        for each in kept
    ]
    values = {name: np.concatenate([look[name] for look in looks]) for name in looks[0]}
    count = len(next(iter(values.values())))
    return imprecision(values, np.full(count, 1 / count), NUM_CHAINS)


def _bridged(
    modes: Sequence[Mode],
    weighted: Weighted,
    settled: Settled,
    draws: Draws,
) -> Evidence:
    """The evidence between the approximation and the moved chains; its error over three parts."""
    frames = [mode.frame for mode in modes]
    there = draws.heights - log_mixture(frames, draws.z)
    here = weighted.heights - log_mixture(frames, weighted.z)
    here = here[np.isfinite(here)]
    if not settled.arrived or not np.isfinite(there).all() or not here.size:
        return Evidence(weighted.log_evidence()[0], float("nan"))
    parts = [bridge(here[i::8], there[i::8]) for i in range(8)]
    return Evidence(bridge(here, there), float(np.std(parts) / np.sqrt(8)))


def _verdict(
    modes: Sequence[Mode],
    shares: Float[np.ndarray, " K"],
    weighted: Weighted,
    settled: Settled | None,
    draws: Draws,
    guide: Guide | None,
) -> Verdict:
    by_weights = f"k-hat {weighted.k_hat:.2f}, {weighted.effective:.0f} effective draws"
    if settled is not None and not settled.arrived:
        return UseNUTS((f"importance weights fail ({by_weights})", *settled.reasons()))
    if settled is not None and settled.imprecision >= PRECISE:
        said = f"chains know a mean or deviation to {settled.imprecision:.2f} deviations at best"
        return UseNUTS((f"importance weights fail ({by_weights})", said))
    present = shares[shares > PRESENT]
    if len(present) > 1:
        said = ", ".join(f"{share:.2f}" for share in present)
        return SeveralModes((f"{len(present)} optima of weight {said}", by_weights))
    if settled is None:
        reasons = (f"importance weights are reliable ({by_weights})",)
    else:
        mean, sd = draws.moments()
        off = np.max(np.abs(mean - np.asarray(modes[0].frame.centre)) / sd)
        reasons = (
            f"{NUM_CHAINS} chains moved from the approximation's draws forgot them and settled",
            f"means moved by up to {off:.2f} sd",
        )
    off = _off(guide, draws)
    return UseIt(reasons) if off is None else Corrected((off, *reasons))


def _off(guide: Guide | None, draws: Draws) -> str | None:
    """By how much a guide is off, in words; None if it is not."""
    if guide is None:
        return None
    mean, sd = draws.moments()
    shift = np.max(np.abs(guide.loc - mean) / sd)
    ratio = guide.scale / sd
    if shift <= NEAR and np.all(np.abs(ratio - 1) <= NEAR):
        return None
    return (
        f"the guide's means are off by up to {shift:.2f} sd, its sds are {ratio.min():.2f} to "
        f"{ratio.max():.2f} of the posterior's"
    )
