"""The ladder of repairs for a factorisation that fails: attempts in turn, until one is finite.

Rounding can make a damped matrix indefinite. More damping comes first, then eigenvalues below zero
are taken as zero; what comes after that is the caller's. Nothing costs anything while the plain
factorisation works.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from vpng.numerics import trees
from vpng.numerics.trust_region import AFTER_REJECTION

Found = TypeVar("Found", bound=PyTree)

ROUNDING = 10.0
"""Roundings of the largest eigenvalue that may be missing from the smallest."""


def first_finite(
    found: Found,
    attempt: Callable[[Int[Array, ""]], Found],
    num_attempts: Int[Array, ""] | int,
    *,
    good: Bool[Array, ""] | bool | None = None,
) -> tuple[Found, Bool[Array, ""], Int[Array, ""]]:
    """What is found, or what the first attempt finds that is finite.

    A loop, not a conditional: vectorised over runs it costs nothing either while none fails.

    Args:
        found: what is there before the first attempt.
        attempt: number -> what that attempt finds, a tree like it.
        num_attempts: how many there are.
        good: whether what is there will do; by default if it is finite.

    Returns:
        What was found last, whether it is good, and the number of attempts made.
    """

    def failing(carry: tuple[Found, Array, Array]) -> Bool[Array, ""]:
        _, good, count = carry
        return ~good & (count < num_attempts)

    def tried(carry: tuple[Found, Array, Array]) -> tuple[Found, Array, Array]:
        found = attempt(carry[2])
        return found, trees.all_finite(found), carry[2] + 1

    good = trees.all_finite(found) if good is None else jnp.asarray(good)
    return jax.lax.while_loop(failing, tried, (found, good, jnp.zeros((), jnp.int32)))


def raised(
    damping: Float[Array, ""] | float, largest: Float[Array, ""], dtype: jnp.dtype
) -> Float[Array, ""]:
    """More damping, and what rounding may have taken from the eigenvalues.

    Args:
        damping: with which the factorisation failed.
        largest: an upper bound on the eigenvalues.
        dtype: of the factorisation.
    """
    return AFTER_REJECTION * damping + ROUNDING * jnp.finfo(dtype).eps * largest


def without_negative(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The matrix with eigenvalues below zero taken as zero."""
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.maximum(values, 0.0)) @ vectors.T
