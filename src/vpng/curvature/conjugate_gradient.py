"""Conjugate gradients on matrix-free products."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from vpng.checks import finite_scalar, positive_integer
from vpng.curvature.base import (
    AbstractCurvature,
    MakeOperator,
    Solution,
    nonnegative,
    relative_norm,
    solve_info,
)


class ConjugateGradient(AbstractCurvature[Float[Array, " P"]]):
    """Solves with products F v alone: for many parameters with no layer structure.

    Attributes:
        rtol: relative tolerance on the residual.
        max_steps: iteration limit; None for ten times the number of parameters.
        warm_start: start from the solution before, which in a run is nearly the next one.
    """

    rtol: float = 1e-3
    max_steps: int | None = eqx.field(default=100, static=True)
    warm_start: bool = eqx.field(default=True, static=True)

    def __check_init__(self) -> None:
        finite_scalar("rtol", self.rtol, minimum=0.0, strict=False)
        if self.max_steps is not None:
            positive_integer("max_steps", self.max_steps)

    def most_products(self, num_parameters: int) -> int:
        """The iteration limit as a number."""
        return 10 * num_parameters if self.max_steps is None else self.max_steps

    def init(self, parameters: PyTree) -> Float[Array, " P"]:
        return jnp.zeros_like(ravel_pytree(parameters)[0])

    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: Float[Array, " P"],
    ) -> Solution[Float[Array, " P"]]:
        flat, unravel = ravel_pytree(gradient)
        mu = nonnegative(damping, flat.dtype)
        fisher = metric().product()

        def product(vector: Array) -> Array:
            return ravel_pytree(fisher(unravel(vector)))[0] + mu * vector

        linear = lx.FunctionLinearOperator(
            product, jax.eval_shape(lambda: flat), lx.positive_semidefinite_tag
        )
        # Entries of the gradient that are zero need a scale too: without one 0 / 0 ends the search.
        size = jnp.linalg.norm(flat) / jnp.sqrt(flat.size)
        atol = jnp.maximum(self.rtol * size, jnp.finfo(flat.dtype).tiny)
        solved = lx.linear_solve(
            linear,
            flat,
            lx.CG(rtol=self.rtol, atol=atol, max_steps=self.max_steps),  # pyright: ignore[reportArgumentType]
            options={"y0": state} if self.warm_start else {},
            throw=False,
        )
        direction = solved.value
        image = product(direction)
        residual = relative_norm(image - flat, flat)
        info = solve_info(
            direction,
            residual,
            condition=_condition(product, flat, mu),
            iterations=solved.stats["num_steps"],
            converged=solved.result == lx.RESULTS.successful,
        )
        carried = jnp.where(jnp.isfinite(jnp.sum(direction)), direction, jnp.zeros_like(direction))
        return Solution(unravel(direction), carried, info)


def _condition(product, vector: Float[Array, " P"], damping: Float[Array, ""]) -> Array:
    """One power step from g: the largest eigenvalue, over the smallest there can be (mu)."""
    image = product(vector)
    largest = relative_norm(image, vector)
    return largest / jnp.maximum(damping, jnp.finfo(vector.dtype).tiny)
