"""Any curvature at the current point, with no average over steps: for many parameters."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from vpng.adaptive.geometry import AbstractGeometry, NoiseHere, Prepared, Solved
from vpng.adaptive.stiffness import Stiffness
from vpng.curvature import AbstractCurvature, auto
from vpng.curvature.base import MetricHere
from vpng.problem import Parameters


class Linearised(AbstractGeometry[PyTree]):
    """The solves of `curvature`, whose damping is scaled by the mean of the metric's diagonal.

    Attributes:
        curvature: how to represent and solve.
        stiffness: what is added to the damping if all parameters are weights of networks.
    """

    many_solves: ClassVar[bool] = False
    num_blocks: ClassVar[int] = 1
    num_draws: ClassVar[int] = 3
    initial_share: ClassVar[float] = 0.1
    tolerated_noise: ClassVar[float] = 0.1

    curvature: AbstractCurvature = eqx.field(default_factory=auto)
    stiffness: Stiffness = Stiffness()

    def init(self, params: Parameters) -> PyTree:
        return self.curvature.init(params)

    def prepare(
        self,
        state: PyTree,
        metric: MetricHere,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: NoiseHere | None,
    ) -> Prepared[PyTree]:
        operator = metric()
        flat, unravel = ravel_pytree(params)
        # E |R v|^2 / P over random signs v is the mean of F's diagonal; these signs are fixed.
        signs = jax.random.rademacher(jax.random.key(0), flat.shape, flat.dtype)
        mean_diagonal = jnp.sum(operator.push(unravel(signs)) ** 2) / flat.size
        finite: Bool[Array, ""] = jnp.isfinite(mean_diagonal)
        absolute = damping * jnp.where(finite, mean_diagonal, 1.0)
        absolute = absolute + self.stiffness.of_all(params)

        def solve(*gradients: Parameters) -> Solved:
            solved = [
                self.curvature.solve(lambda: operator, gradient, absolute, state).direction
                for gradient in gradients
            ]
            flat = lambda trees: jnp.stack([ravel_pytree(tree)[0] for tree in trees])
            return Solved(solved[0], (flat(gradients) @ flat(solved).T)[None])

        def square(step: Parameters) -> Float[Array, ""]:
            return jnp.sum(operator.push(step) ** 2)

        return Prepared(solve, square, state, finite)
