"""What is tried when a factorisation fails: more damping, clipped eigenvalues, products alone.

Rounding can make a damped matrix indefinite. The attempts are made in turn until one is finite;
none costs anything while the factorisation works.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from vpng.curvature.truncated import truncated_conjugate_gradient
from vpng.findings import all_finite

CLIPPED = 2
"""The place of clipped eigenvalues among the fallbacks."""

MAX_PRODUCTS = 100


def raised(matrix: Float[Array, "n n"], damping: Float[Array, ""] | float) -> Float[Array, ""]:
    """Ten times the damping, and what rounding may have taken from the eigenvalues."""
    largest = jnp.max(jnp.sum(jnp.abs(matrix), axis=1), initial=0.0)
    return 10.0 * damping + 10.0 * jnp.finfo(matrix.dtype).eps * largest


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

    A loop, not a conditional: vectorised over runs it costs nothing either while none fails.

    Args:
        direction: of the factorisation.
        factor: F or rows of it; if it is not finite there is nothing to attempt.
        gradient: nor if this is not.
        attempts: in their order, functions of `factor`.
    """

    def failing(carry: tuple[Array, Array]) -> Bool[Array, ""]:
        direction, count = carry
        return ~all_finite(direction) & (count < len(attempts))

    def attempt(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        direction, count = carry
        able = all_finite(factor) & all_finite(gradient)
        # Tied to the count, or the compiler would see that the attempts are the same in every turn
        # and make all of them before the loop.
        here, count = jax.lax.optimization_barrier((factor, count))
        # Nothing but the first is evaluated for a matrix that is not finite.
        found = jax.lax.switch(jnp.where(able, count, 0), attempts, here)
        return (
            jnp.where(able, found, direction).astype(direction.dtype),
            jnp.where(able, count + 1, len(attempts)),
        )

    start = (direction, jnp.zeros((), jnp.int32))
    direction, count = jax.lax.while_loop(failing, attempt, start)
    return direction, count


def by_products(
    product: Callable[[Float[Array, " n"]], Float[Array, " n"]], gradient: Float[Array, " n"]
) -> Float[Array, " n"]:
    """A descent direction from a few products with the damped matrix."""
    direction, _, _ = truncated_conjugate_gradient(
        product, gradient, max_steps=MAX_PRODUCTS, rtol=1e-3
    )
    return direction
