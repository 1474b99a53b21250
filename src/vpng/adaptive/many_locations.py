"""Factorised approximations z = m + s eps of so many latents that no matrix of them is formed.

As in `vpng.adaptive.location_scale` the block of m (and theta) is the model's curvature G in the
latents, and that of s is diag(G) + 1 / s^2. G is an operator here: its products solve for m, and
its diagonal, probed and averaged over steps, is all that s needs.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from vpng.adaptive.geometry import (
    Evaluation,
    Objective,
    Prepared,
    Solved,
    WeightedNoise,
    diagonal_floor,
    products_of,
)
from vpng.adaptive.location_scale import LocationScale
from vpng.adaptive.units import InUnits, UnitState, by_shape
from vpng.curvature import AbstractCurvature
from vpng.curvature.base import MakeOperator
from vpng.problem import Parameters


class ManyLocations(LocationScale):
    """`LocationScale` with `PerCoordinate` scales, by products with the metric.

    Attributes:
        curvature: how to represent the metric of the location and solve with it.
    """

    initial_share: ClassVar[float] = 0.3

    curvature: AbstractCurvature = eqx.field(default_factory=by_shape)

    def evaluate(
        self, objective: Objective, params: Parameters, state: UnitState | None = None
    ) -> Evaluation:
        # The covariance of all particles' gradients would be a matrix of all latents.
        return super().evaluate(objective, params)._replace(draws=None)

    def init(self, params: Parameters) -> UnitState:
        return UnitState.of(self.curvature, self._centre_of(params))

    def prepare(
        self,
        state: UnitState,
        metric: MakeOperator,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: WeightedNoise | None,
    ) -> Prepared[UnitState]:
        operator = metric().restricted(*self.centre(params))
        constrained, unconstrain = self._scale(params)
        scale, split = self.kind.join(constrained)
        information = self.kind.information(scale)
        first = ravel_pytree(params.model)[0].size
        instead = jnp.append(jnp.full(first, 1.0 / self.kind.num_data), information)
        units = InUnits.at(operator, self.curvature, state, damping, 0.0, instead)
        diagonal = units.state.diagonal + units.spare
        of_scale = diagonal[first:] + information
        _, pull = jax.vjp(unconstrain, constrained)
        _, unravel = self._flat(params)

        def whitened_scale(gradient: Parameters) -> Array:
            (pulled,) = pull(self._raw(gradient))
            return self.kind.join(pulled)[0] * jax.lax.rsqrt(of_scale)

        def solve(gradient: Parameters, apart: Parameters, *scores: Parameters) -> Solved:
            every = (gradient, apart, *scores)
            rows = jnp.stack([self._flat(each)[0] for each in every])
            solved, carried = units.solve(rows[0], rows[1])
            # The scores' regression is content with the diagonal, which needs no solves.
            centres = products_of(rows * jax.lax.rsqrt(diagonal_floor(diagonal)))
            centres = centres.at[:2, :2].set(rows[:2] @ solved.T)
            scales = jnp.stack([whitened_scale(each) for each in every])
            model, locations = unravel(solved[0])
            _, raw = jax.jvp(
                unconstrain, (constrained,), (split(scales[0] * jax.lax.rsqrt(of_scale)),)
            )
            direction = self._joined(params, model, locations, raw)
            return Solved(direction, jnp.stack([centres, products_of(scales)]), carried)

        def square(step: Parameters) -> Float[Array, ""]:
            flat, _ = self._flat(step)
            _, motion = jax.jvp(self._constrain, (self._raw(params),), (self._raw(step),))
            moved = self.kind.join(motion)[0]
            of_centre = jnp.sum(operator.push(self._centre_of(step)) ** 2)
            return of_centre + jnp.sum(units.spare * flat**2) + jnp.sum(of_scale * moved**2)

        return Prepared(solve, square, units.state, units.finite)
