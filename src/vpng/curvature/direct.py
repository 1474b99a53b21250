"""Curvatures that factorise a matrix: no curvature, its diagonal, P x P, least squares, M x M."""

from collections.abc import Callable
from functools import partial
from numbers import Integral

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float, Int, PyTree

from vpng.curvature.base import (
    AbstractCurvature,
    MakeOperator,
    Solution,
    nonnegative,
    relative_norm,
    solve_info,
)
from vpng.curvature.fallback import CLIPPED, by_products, clipped, fall_back, inverted, more_damping
from vpng.distributed.layout import by_columns
from vpng.errors import expected

TOLERANCE = 1e-2
"""A direct solve with a larger residual is called inaccurate."""


class _Direct(AbstractCurvature[tuple[()]]):
    """A curvature that carries nothing from one solve to the next."""

    def init(self, parameters: PyTree) -> tuple[()]:
        return ()


class Identity(_Direct):
    """The plain gradient: F is taken to be zero and the damping one."""

    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: tuple[()],
    ) -> Solution[tuple[()]]:
        flat, _ = ravel_pytree(gradient)
        return Solution(gradient, (), solve_info(flat, 0.0, condition=1.0))


class Diagonal(_Direct):
    """The diagonal of F alone."""

    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: tuple[()],
    ) -> Solution[tuple[()]]:
        flat, unravel = ravel_pytree(gradient)
        damped = metric().diagonal().astype(flat.dtype) + nonnegative(damping, flat.dtype)
        positive = damped > 0
        direction = flat / jnp.where(
            positive, damped, jnp.finfo(damped.dtype).eps * jnp.max(damped)
        )
        residual = relative_norm(damped * direction - flat, flat)
        info = solve_info(
            direction,
            residual,
            condition=jnp.max(damped) / jnp.min(damped),
            fallbacks=jnp.where(jnp.all(positive), 0, CLIPPED),
        )
        return Solution(unravel(direction), (), info)


class Dense(_Direct):
    """F formed as a P x P matrix and factorised by Cholesky: for few parameters."""

    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: tuple[()],
    ) -> Solution[tuple[()]]:
        flat, unravel = ravel_pytree(gradient)
        fisher, mu = metric().to_dense().astype(flat.dtype), nonnegative(damping, flat.dtype)
        matrix = _shifted(fisher, mu)
        factor = jnp.linalg.cholesky(matrix)
        direction, fallbacks = _or_fall_back(
            cho_solve((factor, True), flat), fisher, lambda matrix: matrix, mu, flat
        )
        residual = relative_norm(matrix @ direction - flat, flat)
        condition = _condition(jnp.diagonal(factor))
        info = solve_info(
            direction, residual, condition=condition, fallbacks=fallbacks, tolerance=TOLERANCE
        )
        return Solution(unravel(direction), (), info)


class LeastSquares(_Direct):
    """QR of the stacked factor [R; sqrt(mu) I]: never forms F, so its condition is not squared.

    The triangular factor T has T^T T = F + mu I. Dearer than `Dense` and more accurate where F is
    nearly singular and the precision is single.
    """

    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: tuple[()],
    ) -> Solution[tuple[()]]:
        flat, unravel = ravel_pytree(gradient)
        rows, mu = metric().factor().astype(flat.dtype), nonnegative(damping, flat.dtype)
        ridge = jnp.sqrt(mu) * jnp.eye(flat.size, dtype=flat.dtype)
        triangle = jnp.linalg.qr(jnp.concatenate([rows, ridge]), mode="r")
        direction, fallbacks = _or_fall_back(
            solve_triangular(triangle, solve_triangular(triangle, flat, trans="T")),
            rows,
            lambda rows: rows.T @ rows,
            mu,
            flat,
        )
        residual = relative_norm(rows.T @ (rows @ direction) + mu * direction - flat, flat)
        condition = _condition(jnp.diagonal(triangle))
        info = solve_info(
            direction, residual, condition=condition, fallbacks=fallbacks, tolerance=TOLERANCE
        )
        return Solution(unravel(direction), (), info)


class Dual(_Direct):
    """The push-through identity: solves in row space, for fewer rows M than parameters P.

    (R^T R + mu I)^-1 g = (g - R^T (R R^T + mu I)^-1 R g) / mu. P x P is never formed; the damping
    must be positive, since R^T R is singular when M < P.

    Attributes:
        refinements: steps of iterative refinement, which give back the digits that the difference
            loses when mu is small.
    """

    refinements: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        count = self.refinements
        if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
            raise expected("refinements", "a whole number of at least 0", repr(count))

    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: tuple[()],
    ) -> Solution[tuple[()]]:
        flat, unravel = ravel_pytree(gradient)
        rows = by_columns(metric().factor().astype(flat.dtype))
        mu = nonnegative(damping, flat.dtype)
        gram = rows @ rows.T
        factor = jnp.linalg.cholesky(_shifted(gram, mu))

        def push_through(vector: Array) -> Array:
            return (vector - rows.T @ cho_solve((factor, True), rows @ vector)) / mu

        def fallen_back(inverse: Callable[..., Array], rows: Array) -> Array:
            gram = rows @ rows.T
            more = more_damping(gram, mu)
            return (flat - rows.T @ inverse(gram, more, rows @ flat)) / more

        def iterated(rows: Array) -> Array:
            more = more_damping(rows @ rows.T, mu)
            return by_products(lambda v: rows.T @ (rows @ v) + more * v, flat)

        def remainder(direction: Array) -> Array:
            return flat - rows.T @ (rows @ direction) - mu * direction

        direction = push_through(flat)
        for _ in range(self.refinements):
            direction = direction + push_through(remainder(direction))
        direction, fallbacks = fall_back(
            direction,
            rows,
            flat,
            [partial(fallen_back, inverted), partial(fallen_back, clipped), iterated],
        )
        pivots = jnp.diagonal(factor)
        # Without any row F is zero, and mu I has a condition of one.
        condition = (jnp.max(pivots, initial=jnp.sqrt(mu)) / jnp.sqrt(mu)) ** 2
        residual = relative_norm(remainder(direction), flat)
        info = solve_info(
            direction, residual, condition=condition, fallbacks=fallbacks, tolerance=TOLERANCE
        )
        return Solution(unravel(direction), (), info)


def _or_fall_back(
    direction: Float[Array, " P"],
    factor: Float[Array, "M P"],
    matrix_of: Callable[[Float[Array, "M P"]], Float[Array, "P P"]],
    damping: Float[Array, ""],
    gradient: Float[Array, " P"],
) -> tuple[Float[Array, " P"], Int[Array, ""]]:
    """`direction`, or one from the matrix with more damping, and the number of fallbacks."""

    def solved(inverse: Callable[..., Array], factor: Array) -> Array:
        matrix = matrix_of(factor)
        return inverse(matrix, more_damping(matrix, damping), gradient)

    def iterated(matrix: Array, damping: Array, vector: Array) -> Array:
        return by_products(lambda v: matrix @ v + damping * v, vector)

    return fall_back(
        direction,
        factor,
        gradient,
        [partial(solved, inverse) for inverse in (inverted, clipped, iterated)],
    )


def _shifted(matrix: Float[Array, "n n"], damping: Float[Array, ""]) -> Float[Array, "n n"]:
    return matrix + damping * jnp.eye(matrix.shape[0], dtype=matrix.dtype)


def _condition(pivots: Float[Array, " n"]) -> Float[Array, ""]:
    """A lower bound on the condition number from the pivots of a triangular factor."""
    sizes = jnp.abs(pivots)
    return (jnp.max(sizes) / jnp.min(sizes)) ** 2
