"""Conjugate gradients that stop early, for matrices that may be indefinite."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def truncated_conjugate_gradient(
    product: Callable[[Array], Array],
    gradient: Float[Array, " P"],
    *,
    max_steps: Int[Array, ""] | int,
    rtol: Float[Array, ""] | float,
) -> tuple[Float[Array, " P"], Int[Array, ""], Array]:
    """Conjugate gradients for H u = g that stop at negative curvature.

    Started from zero every iterate u has g.u > 0, so each is a descent direction of the loss
    whatever H is. If the first direction already curves down, the gradient itself is returned.

    Returns:
        The direction, the number of products, and whether the tolerance was reached.
    """
    tolerance = (rtol**2) * jnp.sum(gradient**2)

    class Carry(NamedTuple):
        solution: Array
        residual: Array
        search: Array
        square: Array
        count: Array
        negative: Array

    def going(carry: Carry) -> Array:
        return (carry.count < max_steps) & ~(carry.square <= tolerance) & ~carry.negative

    def step(carry: Carry) -> Carry:
        image = product(carry.search)
        curvature = jnp.sum(carry.search * image)
        negative = ~(curvature > 0)
        # A curvature that is not a number makes the solution so, and the caller says so.
        alpha = jnp.where(curvature <= 0, 0.0, carry.square / curvature)
        residual = carry.residual - alpha * image
        square = jnp.sum(residual**2)
        search = residual + square / carry.square * carry.search
        return Carry(
            carry.solution + alpha * carry.search,
            residual,
            search,
            square,
            carry.count + 1,
            negative,
        )

    start = Carry(
        jnp.zeros_like(gradient),
        gradient,
        gradient,
        jnp.sum(gradient**2),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
    )
    end = jax.lax.while_loop(going, step, start)
    stuck = end.negative & (end.count == 1) & jnp.isfinite(jnp.sum(end.solution))
    return jnp.where(stuck, gradient, end.solution), end.count, end.square <= tolerance
