"""Solves in coordinates in which the metric has a diagonal of ones.

Parameters may have any units, and the damping is then relative to each of them. For F = R^T R and
random signs v, E (R^T v)^2 is the diagonal of F; a few probes a step are averaged over steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from vpng.adaptive.geometry import diagonal_floor, unseen
from vpng.curvature import AbstractCurvature, Automatic, ConjugateGradient
from vpng.fisher import FisherOperator
from vpng.kronecker import AbstractKronecker
from vpng.numerics.cost import SHORT_SOLVE
from vpng.numerics.moving_average import mixed

NUM_PROBES = 4
"""Random signs for the diagonal, each as dear as a gradient."""

PRODUCTS_PER_STEP = 2 * (SHORT_SOLVE + 2) + NUM_PROBES // 2
"""Two solves, each with its residual and its condition, and probes of half a product each."""

SHORTEST = 0.1
"""Least weight of a step's diagonal in the average."""


def by_shape() -> AbstractCurvature:
    """`vpng.auto()` for noisy gradients: conjugate gradients come sooner, and stop at one digit."""
    return Automatic(ConjugateGradient(rtol=0.1, max_steps=SHORT_SOLVE))


class UnitState(NamedTuple):
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

    @classmethod
    def of(cls, curvature: AbstractCurvature, parameters: PyTree) -> "UnitState":
        """Before the first step."""
        flat, _ = ravel_pytree(parameters)
        return cls(
            curvature.init(parameters),
            jnp.zeros_like(flat),
            jnp.zeros(flat.shape, jnp.int32),
            jnp.zeros((), jnp.int32),
        )

    def probed(self, operator: FisherOperator) -> tuple["UnitState", Bool[Array, ""]]:
        """With the diagonal of one more metric, and whether that was finite."""
        key = jax.random.fold_in(jax.random.key(0), self.step)
        found = _probed_diagonal(operator, key).astype(self.diagonal.dtype)
        rate = jnp.maximum(1.0 / (self.seen + 1.0), SHORTEST).astype(found.dtype)
        diagonal, finite = mixed(self.diagonal, found, rate, found > 0)
        seen = self.seen + (finite & (found > 0))
        return self._replace(diagonal=diagonal, seen=seen, step=self.step + 1), finite


class InUnits(NamedTuple):
    """(F + damping diag(F) + stiffness) at one point, ready to be solved with.

    Attributes:
        state: what is carried to the next step, but for the curvature's part.
        finite: whether the metric could be evaluated.
        spare: what stands in for the metric of parameters that it does not see.
        solve: flat vectors -> the solutions, one row each, and the next state.
    """

    state: UnitState
    finite: Bool[Array, ""]
    spare: Float[Array, " P"]
    solve: Callable[..., tuple[Float[Array, "k P"], UnitState]]

    @classmethod
    def at(
        cls,
        operator: FisherOperator,
        curvature: AbstractCurvature,
        state: UnitState,
        damping: Float[Array, ""],
        stiffness: Float[Array, " P"] | float,
        instead: Float[Array, " P"] | float,
    ) -> "InUnits":
        """Of an operator.

        A Kronecker curvature, which has to find its layers, keeps the parameters as they are, and
        its damping goes with the mean of the diagonal.

        Args:
            operator: F.
            curvature: how to represent and solve.
            state: of the step before.
            damping: relative to the diagonal.
            stiffness: what is added to the diagonal whatever the damping.
            instead: likewise, for parameters that the metric does not see.
        """
        flat, unravel = ravel_pytree(operator.parameters)
        state, finite = state.probed(operator)
        spare = unseen(state.diagonal, instead)
        # What is not to be damped relative to F is divided by the damping that will multiply it.
        unit = diagonal_floor(state.diagonal) + (stiffness + spare) / damping
        if isinstance(curvature, AbstractKronecker):
            root, scaled, absolute = jnp.ones_like(flat), operator, damping * jnp.mean(unit)
        else:
            root = jnp.sqrt(unit)
            embed = lambda tree: unravel(ravel_pytree(tree)[0] / root)
            scaled, absolute = operator.restricted(unravel(root * flat), embed), damping

        def solve(*vectors: Float[Array, " P"]) -> tuple[Float[Array, "k P"], UnitState]:
            found = [
                curvature.solve(lambda: scaled, unravel(vector / root), absolute, state.curvature)
                for vector in vectors
            ]
            solved = jnp.stack([ravel_pytree(solution.direction)[0] for solution in found])
            return solved / root, state._replace(curvature=found[0].state)

        return cls(state, finite, spare, solve)


def _probed_diagonal(operator: FisherOperator, rng_key: Array) -> Float[Array, " P"]:
    """The mean of (R^T v)^2 over a few vectors of random signs v."""
    rows, pull = jax.vjp(operator.row_function, operator.parameters)
    keys = jax.random.split(rng_key, NUM_PROBES)
    signs = jax.vmap(lambda key: jax.random.rademacher(key, rows.shape, rows.dtype))(keys)
    pulled = jax.vmap(lambda v: ravel_pytree(pull(v))[0])(signs)
    return jnp.mean(pulled**2, axis=0)
