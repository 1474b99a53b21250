"""The metric averaged over steps as one matrix."""

from typing import ClassVar

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
    products_of,
)
from vpng.adaptive.stiffness import Stiffness
from vpng.curvature.base import MetricHere
from vpng.problem import Parameters


class AveragedDense(AbstractGeometry[Float[Array, "P P"]]):
    """F as a P x P matrix, for any approximation with few parameters.

    Attributes:
        stiffness: what is added to the metric of weights of networks.
    """

    stiffness: Stiffness = Stiffness()

    many_solves: ClassVar[bool] = True
    num_blocks: ClassVar[int] = 1
    num_draws: ClassVar[int] = 3
    initial_share: ClassVar[float] = 0.1
    tolerated_noise: ClassVar[float] = 0.1

    def init(self, params: Parameters) -> Float[Array, "P P"]:
        flat, _ = ravel_pytree(params)
        return jnp.zeros((flat.size, flat.size), flat.dtype)

    def prepare(
        self,
        state: Float[Array, "P P"],
        metric: MetricHere,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: NoiseHere | None,
    ) -> Prepared[Float[Array, "P P"]]:
        matrix, finite = averaged(state, lambda: metric().to_dense(), weight)
        _, unravel = ravel_pytree(params)
        held = matrix + jnp.diag(self.stiffness.diagonal(params))
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
