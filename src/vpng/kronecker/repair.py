"""What is done when factors are not finite or cannot be inverted, and what it is called."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from vpng.kronecker.factor_statistics import Factors, Statistics
from vpng.not_finite import NotFinite
from vpng.numerics import trees
from vpng.numerics.repairs import first_finite, raised, without_negative

NUM_ATTEMPTS = 3
"""Plainly, with more damping, and with clipped eigenvalues too."""

Inverse = TypeVar("Inverse", bound=PyTree)


def factor_findings(statistics: Statistics) -> NotFinite:
    """Which statistics are not finite."""
    named: list[tuple[str, PyTree]] = []
    # In JAX's own order of dictionaries, so that the names are always the same.
    for weight, (inputs, outputs) in sorted(statistics.layers.items()):
        named += [(f"Fisher factor A of {weight}", inputs)]
        named += [(f"Fisher factor G of {weight}", outputs)]
    for link, coupling in enumerate(statistics.couplings):
        named += [(f"Fisher factors between layers {link} and {link + 1}", coupling)]
    named += [("Fisher block of the parameters in no layer", statistics.dense)]
    named += [
        (f"Fisher diagonal of {path}", leaf) for path, leaf in sorted(statistics.diagonal.items())
    ]
    flags = [~trees.all_finite(tree) for _, tree in named]
    return NotFinite.of([name for name, _ in named], flags)


def inverted_or_repaired(
    invert: Callable[[Statistics, Float[Array, ""]], Inverse],
    statistics: Statistics,
    damping: Float[Array, ""],
    old: Inverse,
) -> tuple[Inverse, Bool[Array, ""], Int[Array, ""]]:
    """The inverse of the damped factors, repaired as far as it takes.

    Args:
        invert: statistics, damping -> the inverse.
        statistics: the factors.
        damping: mu.
        old: an inverse of the same shape, kept if nothing works.

    Returns:
        The inverse, whether it is a new one, and the number of repairs.
    """
    factors = [leaf for leaf in jax.tree.leaves(statistics.layers) if leaf.ndim == 2]
    traces = [jnp.trace(factor) for factor in [*factors, statistics.dense]]
    more = raised(damping, jnp.max(jnp.stack(traces)), damping.dtype)

    def attempt(count: Int[Array, ""]) -> Inverse:
        # One inversion for all attempts: of many layers it is most of the program.
        seen = jax.lax.cond(count < 2, lambda: statistics, lambda: _clipped(statistics))
        return invert(seen, jnp.where(count == 0, damping, more).astype(damping.dtype))

    found, finite, count = first_finite(old, attempt, NUM_ATTEMPTS, good=False)
    return trees.where(finite, found, old), finite, count - 1


def _clipped(statistics: Statistics) -> Statistics:
    """The statistics with eigenvalues below zero taken as zero."""

    def clip(factor: Array) -> Array:
        return without_negative(factor) if factor.ndim == 2 else jnp.maximum(factor, 0.0)

    layers = {name: Factors(*map(clip, factors)) for name, factors in statistics.layers.items()}
    return statistics._replace(layers=layers, dense=clip(statistics.dense))
