"""What is done when factors are not finite or cannot be inverted, and what it is called."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from vpng.findings import Findings, all_finite
from vpng.kronecker.statistics import Factors, Statistics

NUM_ATTEMPTS = 3
"""Plainly, with more damping, and with clipped eigenvalues too."""

Inverse = TypeVar("Inverse", bound=PyTree)


def factor_findings(statistics: Statistics) -> Findings:
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
    flags = [~_tree_finite(tree) for _, tree in named]
    return Findings.of([name for name, _ in named], flags)


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
    rounding = jnp.finfo(damping.dtype).eps * jnp.max(jnp.stack(traces))

    def failing(carry: tuple[Inverse, Array, Array]) -> Bool[Array, ""]:
        _, finite, count = carry
        return ~finite & (count < NUM_ATTEMPTS)

    def attempt(carry: tuple[Inverse, Array, Array]) -> tuple[Inverse, Array, Array]:
        _, _, count = carry
        seen = jax.lax.cond(count < 2, lambda: statistics, lambda: _clipped(statistics))
        more = jnp.where(count == 0, damping, 100.0 * (damping + rounding))
        found = invert(seen, more.astype(damping.dtype))
        return found, _tree_finite(found), count + 1

    start = (old, jnp.zeros((), bool), jnp.zeros((), jnp.int32))
    found, finite, count = jax.lax.while_loop(failing, attempt, start)
    kept = jax.tree.map(lambda new, before: jnp.where(finite, new, before), found, old)
    return kept, finite, count - 1


def _clipped(statistics: Statistics) -> Statistics:
    """The statistics with eigenvalues below zero taken as zero."""

    def clip(factor: Array) -> Array:
        if factor.ndim != 2:
            return jnp.maximum(factor, 0.0)
        values, vectors = jnp.linalg.eigh(factor)
        return (vectors * jnp.maximum(values, 0.0)) @ vectors.T

    layers = {name: Factors(*map(clip, factors)) for name, factors in statistics.layers.items()}
    return statistics._replace(layers=layers, dense=clip(statistics.dense))


def _tree_finite(tree: PyTree) -> Bool[Array, ""]:
    return jnp.all(jnp.stack([all_finite(leaf) for leaf in jax.tree.leaves(tree)]))
