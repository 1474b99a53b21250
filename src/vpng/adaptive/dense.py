"""The metric averaged over steps as one matrix."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from vpng.adaptive.geometry import (
    AbstractGeometry,
    NoiseHere,
    Prepared,
    Solved,
    averaged,
    diagonal_floor,
    mixed,
    products_of,
)
from vpng.adaptive.stiffness import Stiffness
from vpng.curvature.base import MetricHere
from vpng.problem import Parameters


class AveragedDense(AbstractGeometry[Float[Array, "P P"]]):
    """F as a P x P matrix, for any approximation with few parameters.

    Attributes:
        stiffness: what is added to the metric of weights of networks.
        of_batches: whether gradients and metrics are those of minibatches. Parameters of single
            data are then seen now and then, and their gradient counts for all the times that they
            are not; so must the metric, which the average over steps does not.
        scales: names of the parameters that are constrained. With minibatches none of them moves by
            more than one at a time on its unconstrained scale: the next batch may not see whether
            that was good.
    """

    stiffness: Stiffness = Stiffness()
    of_batches: bool = eqx.field(default=False, static=True)
    scales: frozenset[str] = eqx.field(default=frozenset(), static=True)

    many_solves: ClassVar[bool] = True
    num_blocks: ClassVar[int] = 1
    num_draws: ClassVar[int] = 3
    initial_share: ClassVar[float] = 0.1
    tolerated_noise: ClassVar[float] = 0.1

    def init(self, params: Parameters) -> Float[Array, "P P"]:
        flat, _ = ravel_pytree(params)
        return jnp.zeros((flat.size, flat.size), flat.dtype)

    def longest(self, direction: Parameters, params: Parameters) -> Float[Array, " blocks"]:
        named = {**direction.variational, **direction.model} if self.of_batches else {}
        moved = [jnp.abs(named[name]).ravel() for name in named if name in self.scales]
        return 1.0 / jnp.max(jnp.concatenate([jnp.full(1, 1e-30), *moved]), keepdims=True)

    def prepare(
        self,
        state: Float[Array, "P P"],
        metric: MetricHere,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: NoiseHere | None,
    ) -> Prepared[Float[Array, "P P"]]:
        here = lambda: metric().to_dense()
        if self.of_batches:
            current = here()
            matrix, finite = mixed(state, current.astype(state.dtype), weight)
            unseen = diagonal_floor(jnp.diagonal(matrix))
            more = jnp.sqrt(jnp.maximum(jnp.diagonal(current) / unseen, 1.0))
            more = jnp.where(jnp.isfinite(more), more, 1.0)
        else:
            matrix, finite = averaged(state, here, weight)
            more = jnp.ones(())
        _, unravel = ravel_pytree(params)
        held = more[..., None] * matrix * more + jnp.diag(self.stiffness.diagonal(params))
        # Unit diagonal: parameters may have any units.
        scale = jax.lax.rsqrt(diagonal_floor(jnp.diagonal(held)))
        correlation = scale[:, None] * held * scale
        unit = jnp.eye(scale.size, dtype=scale.dtype)
        factor = jnp.linalg.cholesky(correlation + damping * unit)
        # Formed once: the many solves of one step are then plain products.
        root = solve_triangular(factor, unit, lower=True) * scale

        def solve(*gradients: Parameters) -> Solved:
            whitened = jnp.stack([ravel_pytree(gradient)[0] for gradient in gradients]) @ root.T
            return Solved(unravel(whitened[0] @ root), products_of(whitened)[None])

        # Like the damping, stiffness is no part of the model that is judged.
        def square(step: Parameters) -> Float[Array, ""]:
            flat, _ = ravel_pytree(step)
            return flat @ (matrix @ flat)

        return Prepared(solve, square, matrix, finite)
