"""The metric averaged over steps as one matrix."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from vpng.adaptive.geometry import (
    AbstractGeometry,
    Prepared,
    Solved,
    WeightedNoise,
    diagonal_floor,
    multiple_within_one,
    products_of,
    unseen,
)
from vpng.adaptive.stiffness import Stiffness
from vpng.curvature.base import MakeOperator
from vpng.numerics.moving_average import mixed, mixed_if_any
from vpng.problem import Parameters
from vpng.products import product

LEAST_WEIGHT = 0.02
"""Of the metric of one minibatch in the average."""


class Averaged(NamedTuple):
    """What is carried from step to step.

    Attributes:
        matrix: the average of F.
        seen: the diagonal of F, every entry as it was when it was last seen; with minibatches only.
    """

    matrix: Float[Array, "P P"]
    seen: Float[Array, " P"]


class AveragedDense(AbstractGeometry[Averaged]):
    """F as a P x P matrix, for any approximation with few parameters.

    Attributes:
        stiffness: what is added to the metric of weights of networks.
        of_batches: whether gradients and metrics are those of minibatches. Parameters of single
            data are then seen now and then, and their gradient counts for all the times that they
            are not; so must the metric, which the average over steps does not.
        scales: names of the parameters that are constrained. With minibatches none of them moves by
            more than one at a time on its unconstrained scale.
        num_data: of the problem: a parameter that the metric does not see counts for a nat per unit
            squared.
    """

    stiffness: Stiffness = Stiffness()
    of_batches: bool = eqx.field(default=False, static=True)
    scales: frozenset[str] = eqx.field(default=frozenset(), static=True)
    num_data: int | float = eqx.field(default=1, static=True)

    solves_cheaply: ClassVar[bool] = True
    num_blocks: ClassVar[int] = 1
    num_draws: ClassVar[int] = 3
    initial_share: ClassVar[float] = 0.1
    tolerated_noise: ClassVar[float] = 0.1

    def init(self, params: Parameters) -> Averaged:
        flat, _ = ravel_pytree(params)
        return Averaged(jnp.zeros((flat.size, flat.size), flat.dtype), jnp.zeros_like(flat))

    def longest(self, direction: Parameters, params: Parameters) -> Float[Array, " blocks"]:
        return multiple_within_one(direction, self.scales if self.of_batches else frozenset())

    def prepare(
        self,
        state: Averaged,
        metric: MakeOperator,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: WeightedNoise | None,
    ) -> Prepared[Averaged]:
        here = lambda: metric().to_dense()
        if self.of_batches:
            current = here().astype(state.seen.dtype)
            # Evaluated in any case: the gradient of a later step may be that of this minibatch.
            matrix, finite = mixed(state.matrix, current, jnp.maximum(weight, LEAST_WEIGHT))
            now = jnp.diagonal(current)
            seen = jnp.where(finite & (now > 0), now, state.seen)
            more = jnp.sqrt(jnp.maximum(seen / diagonal_floor(jnp.diagonal(matrix)), 1.0))
        else:
            matrix, finite = mixed_if_any(state.matrix, here, weight)
            seen, more = state.seen, jnp.ones(())
        _, unravel = ravel_pytree(params)
        stiff = self.stiffness.diagonal(params)
        spare = unseen(jnp.diagonal(matrix) + stiff, 1.0 / self.num_data)
        held = more[..., None] * matrix * more + jnp.diag(stiff + spare)
        # Unit diagonal: parameters may have any units.
        scale = jax.lax.rsqrt(diagonal_floor(jnp.diagonal(held)))
        correlation = scale[:, None] * held * scale
        unit = jnp.eye(scale.size, dtype=scale.dtype)
        factor = jnp.linalg.cholesky(correlation + damping * unit)
        # Formed once: the many solves of one step are then plain products.
        root = solve_triangular(factor, unit, lower=True) * scale

        def solve(*gradients: Parameters) -> Solved:
            stacked = jnp.stack([ravel_pytree(gradient)[0] for gradient in gradients])
            whitened = product(stacked, root.T)
            return Solved(unravel(whitened[0] @ root), products_of(whitened)[None])

        # Like the damping, stiffness is no part of the model that is judged.
        def square(step: Parameters) -> Float[Array, ""]:
            flat, _ = ravel_pytree(step)
            return flat @ (matrix @ flat) + jnp.sum(spare * flat**2)

        return Prepared(solve, square, Averaged(matrix, seen), finite)
