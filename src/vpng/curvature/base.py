"""What every curvature does: solve (F + damping I) u = g and say how it went."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree

from vpng.checks import damping_value, floating_type
from vpng.fisher.operator import FisherOperator
from vpng.numerics.trees import is_traced

State = TypeVar("State")

MakeOperator = Callable[[], FisherOperator]


class Outcome(eqx.Enumeration):
    """How a solve ended."""

    success = "solved"
    max_steps = (
        "the iteration limit was reached before the tolerance: raise `max_steps`, `rtol` or "
        "the damping"
    )
    damped = (
        "the factorisation failed and was repeated with more damping: raise the damping or use "
        "float64"
    )
    clipped = (
        "the factorisation failed and eigenvalues below zero were taken as zero: raise the damping "
        "or use float64"
    )
    iterated = (
        "the factorisation failed and conjugate gradients took its place: raise the damping or use "
        "float64"
    )
    inaccurate = (
        "the residual is more than a hundredth of the gradient: F is nearly singular in this "
        "precision; raise the damping, use LeastSquares or float64"
    )
    not_finite = (
        "the solution is not finite: the metric or the gradient is not finite, or the damped "
        "matrix is singular to working precision; raise the damping, lower the learning rate or "
        "use float64"
    )


FALLBACKS = (Outcome.damped, Outcome.clipped, Outcome.iterated)
"""What is tried in turn when a factorisation fails."""


class SolveInfo(NamedTuple):
    """Diagnostics of one solve.

    Attributes:
        outcome: how it ended.
        residual: |(F + damping I) u - g| / |g|, with F as the curvature represents it.
        iterations: of an iterative solver; 1 for a direct one.
        condition: an estimate of the condition number of F + damping I.
    """

    outcome: Outcome
    residual: Float[Array, ""]
    iterations: Int[Array, ""]
    condition: Float[Array, ""]


class Solution(NamedTuple, Generic[State]):
    """The direction u, the curvature's next state and the diagnostics."""

    direction: PyTree
    state: State
    info: SolveInfo


class AbstractCurvature(eqx.Module, Generic[State]):
    """A way to represent the metric and to solve with it."""

    @abstractmethod
    def init(self, parameters: PyTree) -> State:
        """What is carried from one solve to the next."""

    @abstractmethod
    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: State,
    ) -> Solution[State]:
        """Solve (F + damping I) u = g, in the precision of g, whatever that of the data is.

        Args:
            metric: makes the operator F at the current parameters; a function, so that a curvature
                that does not look at F in this step does not pay for it.
            gradient: g, a pytree like the operator's parameters.
            damping: mu >= 0.
            state: from `init` or the solve before.
        """


def solve_info(
    direction: Float[Array, " P"],
    residual: Float[Array, ""] | float,
    *,
    condition: Float[Array, ""] | float,
    iterations: Int[Array, ""] | int = 1,
    converged: Bool[Array, ""] | bool = True,
    fallbacks: Int[Array, ""] | int = 0,
    tolerance: float = math.inf,
) -> SolveInfo:
    """The diagnostics of a solve; a direction or residual that is not finite overrides the rest.

    An iterative solver may give up at its start, with a finite direction and a residual of NaN.

    Args:
        direction: u.
        residual: relative to |g|.
        condition: of the damped matrix.
        iterations: of an iterative solver.
        converged: whether it reached its tolerance.
        fallbacks: how many of `FALLBACKS` a direct solver went through.
        tolerance: residual beyond which a direct solve is inaccurate.
    """
    finite = jnp.isfinite(jnp.sum(direction)) & jnp.isfinite(residual)
    outcome = Outcome.where(converged, Outcome.success, Outcome.max_steps)
    outcome = Outcome.where(residual > tolerance, Outcome.inaccurate, outcome)
    for count, fallback in enumerate(FALLBACKS, start=1):
        outcome = Outcome.where(fallbacks == count, fallback, outcome)
    outcome = Outcome.where(finite, outcome, Outcome.not_finite)
    dtype = direction.dtype
    return SolveInfo(
        outcome,
        jnp.asarray(residual, dtype),
        jnp.asarray(iterations, jnp.int32),
        jnp.asarray(condition, dtype),
    )


def nonnegative(damping: Float[Array, ""] | float, dtype: DTypeLike) -> Float[Array, ""]:
    """The damping in the precision of a solve; one below zero is refused, or NaN if it is traced.

    With NaN the solution is not finite, which is said and not stepped.
    """
    if is_traced(damping):
        return jnp.where(damping >= 0, damping, jnp.nan).astype(dtype)
    damping_value(damping)
    return jnp.asarray(damping, dtype)


def no_info(parameters: PyTree) -> SolveInfo:
    """The diagnostics before any solve."""
    zero = jnp.zeros((), floating_type(parameters))
    # An array from the start, so that the second step has the same signature as the first.
    solved = jax.tree.map(jnp.asarray, Outcome.success)
    return SolveInfo(solved, zero, jnp.zeros((), jnp.int32), zero)


def relative_norm(
    residual: Float[Array, "..."], reference: Float[Array, "..."]
) -> Float[Array, ""]:
    """|residual| / |reference|, zero where both vanish."""
    scale = jnp.sqrt(jnp.sum(reference**2))
    return jnp.sqrt(jnp.sum(residual**2)) / jnp.where(scale > 0, scale, 1.0)
