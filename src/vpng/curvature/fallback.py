"""What is tried when a factorisation fails: more damping, clipped eigenvalues, products alone."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int

from vpng.curvature.truncated import truncated_conjugate_gradient
from vpng.numerics import trees
from vpng.numerics.repairs import first_finite, raised

CLIPPED = 2
"""The place of clipped eigenvalues among the fallbacks."""

MAX_PRODUCTS = 100


def more_damping(
    matrix: Float[Array, "n n"], damping: Float[Array, ""] | float
) -> Float[Array, ""]:
    """The damping of every attempt after the first."""
    largest = jnp.max(jnp.sum(jnp.abs(matrix), axis=1), initial=0.0)
    return raised(damping, largest, matrix.dtype)


def inverted(
    matrix: Float[Array, "n n"], damping: Float[Array, ""] | float, vector: Float[Array, " n"]
) -> Float[Array, " n"]:
    """(M + mu I)^-1 v by Cholesky."""
    damped = matrix + damping * jnp.eye(matrix.shape[0], dtype=matrix.dtype)
    return cho_solve((jnp.linalg.cholesky(damped), True), vector)


def clipped(
    matrix: Float[Array, "n n"], damping: Float[Array, ""] | float, vector: Float[Array, " n"]
) -> Float[Array, " n"]:
    """(M + mu I)^-1 v by eigenvalues, those below zero taken as zero."""
    values, vectors = jnp.linalg.eigh(matrix)
    return vectors @ ((vectors.T @ vector) / (jnp.maximum(values, 0.0) + damping))


def fall_back(
    direction: Float[Array, " n"],
    factor: Float[Array, "m n"],
    gradient: Float[Array, " n"],
    attempts: Sequence[Callable[[Float[Array, "m n"]], Float[Array, " n"]]],
) -> tuple[Float[Array, " n"], Int[Array, ""]]:
    """`direction`, or that of the first attempt that is finite, and the number of attempts.

    Args:
        direction: of the factorisation.
        factor: F or rows of it; if it is not finite there is nothing to attempt.
        gradient: nor if this is not.
        attempts: in their order, functions of `factor`.
    """
    able = trees.all_finite((factor, gradient))

    def attempt(count: Int[Array, ""]) -> Float[Array, " n"]:
        # Tied to the count, or the compiler would see that the attempts are the same in every turn
        # and make all of them before the loop.
        here, count = jax.lax.optimization_barrier((factor, count))
        return jax.lax.switch(count, attempts, here).astype(direction.dtype)

    found, _, count = first_finite(direction, attempt, jnp.where(able, len(attempts), 0))
    return found, count


def by_products(
    product: Callable[[Float[Array, " n"]], Float[Array, " n"]], gradient: Float[Array, " n"]
) -> Float[Array, " n"]:
    """A descent direction from a few products with the damped matrix."""
    direction, _, _ = truncated_conjugate_gradient(
        product, gradient, max_steps=MAX_PRODUCTS, rtol=1e-3
    )
    return direction
