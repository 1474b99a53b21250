"""The damping mu of (F + mu I): constant, on a schedule, or adapted to the quality of the model."""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from vpng.checks import damping_value, finite_scalar, floating_type, positive_integer
from vpng.errors import expected
from vpng.fisher.operator import FisherOperator
from vpng.numerics import trees
from vpng.numerics.trust_region import AFTER_REJECTION, TrustRegion
from vpng.objective import ELBO, Schedule
from vpng.problem import AbstractProblem, Parameters
from vpng.problem.selection import Selection


class DampingContext(NamedTuple):
    """What an adaptive damping may look at, at one step.

    Attributes:
        step: number of updates done before.
        problem: the problem.
        parameters: all parameters now.
        batch: the current batch.
        rng_key: randomness for evaluations of the loss.
        metric: makes the metric's operator at the current parameters, on the selected ones.
        selection: which of the parameters the metric acts on.
    """

    step: Int[Array, ""]
    problem: AbstractProblem
    parameters: Parameters
    batch: PyTree
    rng_key: PRNGKeyArray
    metric: Callable[[], FisherOperator]
    selection: Selection

    @property
    def active(self) -> PyTree:
        """The parameters that the metric acts on."""
        return self.selection.active


class AbstractDamping(eqx.Module):
    """A rule for mu."""

    @abstractmethod
    def init(self, active: PyTree) -> PyTree:
        """The rule's state for the parameters the metric acts on."""

    @abstractmethod
    def update(self, state: PyTree, situation: DampingContext) -> tuple[Float[Array, ""], PyTree]:
        """The damping to use now, and the rule's next state."""

    def failed(self, state: PyTree) -> PyTree:
        """The state after a solve that did not give a finite direction."""
        return state


class Constant(AbstractDamping):
    """mu fixed, as in the paper's experiments; per datum, like the loss and the metric."""

    value: float | Float[Array, ""]

    def __check_init__(self) -> None:
        damping_value(self.value)

    def init(self, active: PyTree) -> tuple[()]:
        return ()

    def update(self, state: PyTree, situation: DampingContext) -> tuple[Float[Array, ""], PyTree]:
        return jnp.asarray(self.value, floating_type(situation.active)), state


class Scheduled(AbstractDamping):
    """mu as a function of the step, for instance an optax schedule."""

    schedule: Schedule

    def __check_init__(self) -> None:
        damping_value(self.schedule(jnp.zeros((), jnp.int32)))

    def init(self, active: PyTree) -> tuple[()]:
        return ()

    def update(self, state: PyTree, situation: DampingContext) -> tuple[Float[Array, ""], PyTree]:
        return jnp.asarray(self.schedule(situation.step), floating_type(situation.active)), state


class LevenbergMarquardtState(NamedTuple):
    """The damping, where the last step began, and the last ratio of actual to predicted gain."""

    damping: Float[Array, ""]
    previous: PyTree
    ratio: Float[Array, ""]

    def after_rejection(self) -> "LevenbergMarquardtState":
        """With five times the damping; the rule's bounds apply when it next adapts."""
        raised = AFTER_REJECTION * self.damping
        return self._replace(damping=raised.astype(self.damping.dtype))


class LevenbergMarquardt(AbstractDamping):
    """The optional step of Algorithm 1: mu follows how well the quadratic model predicts.

    When a step d has been taken, whatever rule made it out of the direction, the loss before and
    after it is evaluated on the current batch with common random numbers, and compared with what
    the quadratic model g.d + d.F d / 2 promised on the same batch, with g at the old point and F
    at the new one, which is at hand:
    a ratio below `low` raises mu by `factor`, one above `high` lowers it by `factor`.

    Attributes:
        initial: the first mu.
        factor: by how much mu changes.
        low: ratio below which the model is not trusted.
        high: ratio above which it is.
        period: steps between two adaptations.
        minimum: lower bound on mu.
        maximum: upper bound on mu.
        objective: how the loss is estimated.
    """

    initial: float = 1e-2
    factor: float = 1.5
    low: float = 0.25
    high: float = 0.75
    period: int = eqx.field(default=1, static=True)
    minimum: float = 1e-8
    maximum: float = 1e8
    objective: ELBO = ELBO()

    def __check_init__(self) -> None:
        finite_scalar("initial", self.initial, minimum=0.0, strict=True)
        finite_scalar("factor", self.factor, minimum=1.0, strict=True)
        finite_scalar("minimum", self.minimum, minimum=0.0, strict=False)
        finite_scalar("maximum", self.maximum, minimum=0.0, strict=True)
        positive_integer("period", self.period)
        if not self.minimum <= self.maximum:
            raise expected("minimum", f"at most maximum = {self.maximum:g}", self.minimum)
        if not self.low < self.high:
            raise expected("low", f"a ratio below high = {self.high}", self.low)

    def init(self, active: PyTree) -> LevenbergMarquardtState:
        dtype = floating_type(active)
        return LevenbergMarquardtState(
            jnp.asarray(self.initial, dtype), active, jnp.asarray(jnp.nan, dtype)
        )

    def update(
        self, state: LevenbergMarquardtState, situation: DampingContext
    ) -> tuple[Float[Array, ""], LevenbergMarquardtState]:
        due = (situation.step > 0) & (situation.step % self.period == 0)

        def adapted() -> tuple[Array, Array]:
            ratio = self._ratio(state.previous, situation)
            # A ratio that is not a number means that the loss or the model broke down.
            worse = jnp.logical_not(ratio >= self.low)
            damping = self._region.after_step(state.damping, good=ratio > self.high, bad=worse)
            ratio = jnp.where(jnp.isfinite(ratio), ratio, 0.0)
            return damping.astype(state.damping.dtype), ratio.astype(state.ratio.dtype)

        damping, ratio = jax.lax.cond(due, adapted, lambda: (state.damping, state.ratio))
        return damping, LevenbergMarquardtState(damping, situation.active, ratio)

    def failed(self, state: LevenbergMarquardtState) -> LevenbergMarquardtState:
        raised = self._region.after_failure(state.damping)
        return state._replace(damping=raised.astype(state.damping.dtype))

    @property
    def _region(self) -> TrustRegion:
        return TrustRegion(
            lower=1 / self.factor,
            worse=self.factor,
            rejected=AFTER_REJECTION,
            failed=self.factor**4,
            minimum=self.minimum,
            maximum=self.maximum,
        )

    def _ratio(self, previous: PyTree, situation: DampingContext) -> Float[Array, ""]:
        problem, batch, key = situation.problem, situation.batch, situation.rng_key
        before, gradient = self.objective.estimate_and_gradient(
            key, problem, situation.selection.embed(previous), batch, step=situation.step
        )
        after = self.objective.estimate(
            key, problem, situation.parameters, batch, step=situation.step
        )
        displacement = jax.tree.map(jnp.subtract, situation.active, previous)
        active_gradient = situation.selection.extract(gradient)
        slope = trees.inner(active_gradient, displacement)
        pushed = situation.metric().push(displacement)
        predicted = -(slope + 0.5 * jnp.sum(pushed**2))
        actual = before.loss - after.loss
        # A step that the model itself calls uphill was not made by this model: judge by the loss.
        return jnp.where(predicted > 0, actual / predicted, jnp.sign(actual))


def as_damping(value: AbstractDamping | Schedule | Float[Array, ""] | float) -> AbstractDamping:
    """A number as `Constant`, a function as `Scheduled`, a rule as itself."""
    if isinstance(value, AbstractDamping):
        return value
    if callable(value):
        return Scheduled(value)
    return Constant(value)
