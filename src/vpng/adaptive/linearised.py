"""Any curvature at the current point, with no average over steps: for many parameters."""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from vpng.adaptive.geometry import (
    AbstractGeometry,
    NoiseHere,
    Prepared,
    Solved,
    by_one_at_most,
    diagonal_floor,
    unseen,
)
from vpng.adaptive.stiffness import Stiffness
from vpng.curvature import AbstractCurvature, auto
from vpng.curvature.base import MetricHere
from vpng.findings import all_finite
from vpng.fisher import FisherOperator
from vpng.kronecker import AbstractKronecker
from vpng.problem import Parameters

NUM_PROBES = 4
"""Random signs for the diagonal, each as dear as a gradient."""

SHORTEST = 0.1
"""Least weight of a step's diagonal in the average."""


class LinearisedState(NamedTuple):
    """What is carried from step to step.

    Attributes:
        curvature: of the curvature.
        diagonal: of the metric, averaged over the steps that saw each parameter.
        seen: number of those steps.
        step: number of all steps.
    """

    curvature: PyTree
    diagonal: Float[Array, " P"]
    seen: Int[Array, " P"]
    step: Int[Array, ""]


class Linearised(AbstractGeometry[LinearisedState]):
    """The solves of `curvature`, in coordinates in which the metric has a diagonal of ones.

    Parameters may have any units, and the damping is relative to each of them. E (R^T v)^2 over
    random signs v is the diagonal of F = R^T R; a few probes a step are averaged over steps. A
    Kronecker curvature, which has to find its layers, keeps the parameters as they are, and its
    damping goes with the mean of the diagonal.

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

    many_solves: ClassVar[bool] = False
    num_blocks: ClassVar[int] = 1
    num_draws: ClassVar[int] = 3
    initial_share: ClassVar[float] = 0.1
    tolerated_noise: ClassVar[float] = 0.1

    curvature: AbstractCurvature = eqx.field(default_factory=auto)
    stiffness: Stiffness = Stiffness()
    num_data: int | float = eqx.field(default=1, static=True)
    by_datum: bool = eqx.field(default=False, static=True)
    scales: frozenset[str] = eqx.field(default=frozenset(), static=True)

    @property
    def remembers(self) -> bool:
        return not self.by_datum

    def init(self, params: Parameters) -> LinearisedState:
        flat, _ = ravel_pytree(params)
        return LinearisedState(
            self.curvature.init(params),
            jnp.zeros_like(flat),
            jnp.zeros(flat.shape, jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def longest(self, direction: Parameters, params: Parameters) -> Float[Array, " blocks"]:
        return by_one_at_most(direction, self.scales)

    def prepare(
        self,
        state: LinearisedState,
        metric: MetricHere,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: NoiseHere | None,
    ) -> Prepared[LinearisedState]:
        operator = metric()
        flat, unravel = ravel_pytree(params)
        probed = _probed_diagonal(operator, jax.random.fold_in(jax.random.key(0), state.step))
        finite = all_finite(probed)
        now = finite & (probed > 0)
        rate = jnp.where(now, jnp.maximum(1.0 / (state.seen + 1.0), SHORTEST), 0.0)
        diagonal = (state.diagonal + rate * (probed - state.diagonal)).astype(flat.dtype)
        diagonal = jnp.where(now, diagonal, state.diagonal)
        state = state._replace(diagonal=diagonal, seen=state.seen + now, step=state.step + 1)

        spare = unseen(diagonal, 1.0 / self.num_data)
        # What is not to be damped relative to F is divided by the damping that will multiply it.
        unit = diagonal_floor(diagonal) + (self.stiffness.diagonal(params) + spare) / damping
        if isinstance(self.curvature, AbstractKronecker):
            unit = jnp.full_like(unit, jnp.mean(unit))
            absolute, scaled, root = damping * unit[0], operator, jnp.ones_like(flat)
        else:
            root = jnp.sqrt(unit)
            embed = lambda tree: unravel(ravel_pytree(tree)[0] / root)
            absolute, scaled = damping, operator.restricted(unravel(root * flat), embed)

        def solve(*gradients: Parameters) -> Solved:
            rows = [ravel_pytree(gradient)[0] / root for gradient in gradients]
            found = [
                self.curvature.solve(lambda: scaled, unravel(row), absolute, state.curvature)
                for row in rows
            ]
            solved = jnp.stack([ravel_pytree(solution.direction)[0] for solution in found])
            return Solved(
                unravel(solved[0] / root),
                (jnp.stack(rows) @ solved.T)[None],
                state._replace(curvature=found[0].state),
            )

        def square(step: Parameters) -> Float[Array, ""]:
            moved = ravel_pytree(step)[0]
            return jnp.sum(operator.push(step) ** 2) + jnp.sum(spare * moved**2)

        return Prepared(solve, square, state, finite)


def _probed_diagonal(operator: FisherOperator, rng_key: Array) -> Float[Array, " P"]:
    """The mean of (R^T v)^2 over a few vectors of random signs v."""
    rows, pull = jax.vjp(operator.row_function, operator.parameters)
    keys = jax.random.split(rng_key, NUM_PROBES)
    signs = jax.vmap(lambda key: jax.random.rademacher(key, rows.shape, rows.dtype))(keys)
    pulled = jax.vmap(lambda v: ravel_pytree(pull(v))[0])(signs)
    return jnp.mean(pulled**2, axis=0)
