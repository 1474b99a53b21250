"""Any curvature at the current point, with no average over steps: for many parameters."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from vpng.adaptive.geometry import (
    AbstractGeometry,
    Prepared,
    Solved,
    WeightedNoise,
    multiple_within_one,
)
from vpng.adaptive.stiffness import Stiffness
from vpng.adaptive.units import InUnits, UnitState, by_shape
from vpng.curvature import AbstractCurvature
from vpng.curvature.base import MakeOperator
from vpng.problem import Parameters


class Linearised(AbstractGeometry[UnitState]):
    """The solves of `curvature`, in coordinates in which the metric has a diagonal of ones.

    Attributes:
        curvature: how to represent and solve.
        stiffness: what is added to the metric of weights of networks.
        num_data: of the problem: a parameter that the metric does not see counts for a nat per unit
            squared.
        by_datum: whether there are parameters of single data of minibatches: only the metric of
            their own minibatch knows them.
        scales: names of the parameters that are constrained and, with minibatches, move by at most
            one at a time on their unconstrained scale.
    """

    solves_cheaply: ClassVar[bool] = False
    num_blocks: ClassVar[int] = 1
    num_draws: ClassVar[int] = 3
    initial_share: ClassVar[float] = 0.1
    tolerated_noise: ClassVar[float] = 0.1

    curvature: AbstractCurvature = eqx.field(default_factory=by_shape)
    stiffness: Stiffness = Stiffness()
    num_data: int | float = eqx.field(default=1, static=True)
    by_datum: bool = eqx.field(default=False, static=True)
    scales: frozenset[str] = eqx.field(default=frozenset(), static=True)

    @property
    def remembers(self) -> bool:
        return not self.by_datum

    def init(self, params: Parameters) -> UnitState:
        return UnitState.of(self.curvature, params)

    def longest(self, direction: Parameters, params: Parameters) -> Float[Array, " blocks"]:
        return multiple_within_one(direction, self.scales)

    def prepare(
        self,
        state: UnitState,
        metric: MakeOperator,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: WeightedNoise | None,
    ) -> Prepared[UnitState]:
        operator = metric()
        stiffness = self.stiffness.diagonal(params)
        units = InUnits.at(operator, self.curvature, state, damping, stiffness, 1.0 / self.num_data)
        _, unravel = ravel_pytree(params)

        def solve(*gradients: Parameters) -> Solved:
            rows = jnp.stack([ravel_pytree(gradient)[0] for gradient in gradients])
            solved, carried = units.solve(*rows)
            return Solved(unravel(solved[0]), (rows @ solved.T)[None], carried)

        def square(step: Parameters) -> Float[Array, ""]:
            moved: Array = ravel_pytree(step)[0]
            return jnp.sum(operator.push(step) ** 2) + jnp.sum(units.spare * moved**2)

        return Prepared(solve, square, units.state, units.finite)
