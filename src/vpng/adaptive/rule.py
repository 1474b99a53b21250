"""A stochastic Levenberg-Marquardt rule: no learning rate, no schedule.

Every step has its own random numbers, drawn after the step before was taken, so that they judge it
without bias. With them the loss is evaluated at the candidate and at the last accepted point
(common random numbers: their difference is known far better than either). Then

1. the candidate is accepted unless the loss rose by more than noise explains, as much of it as
   there was before the step, or fell by more than its slope can;
2. the curvature along the step, 2 (L_before - L_after + g_after . d), is compared with the d.F d of
   the model: their ratio bounds the length of the next step, and lets the damping go down;
3. the metric, averaged over steps, turns the gradient into a direction u;
4. the gradients of two halves of the particles, g_a and g_b, tell signal from noise: the part
   alpha = g_a.F^-1 g_b / g.F^-1 g of the direction is signal, and the best step on a noisy
   quadratic is alpha u, for every block of parameters that the metric does not couple. Steps
   whose noise costs next to nothing are taken in any case: along a curved valley the signal is
   small and the way is long. What noise may cost falls with the number of steps, so that the
   iterates average it away and settle;
5. where noise is all there is, its covariance over the particles, in nats, is added to the metric:
   a few loud directions then do not slow down the quiet ones. A step with far more noise than
   usual is shortened: tails of the posterior that are heavier than those of the approximation
   look like that.

The gradient may carry a control variate: the score of q, which has mean zero and which for an
approximation that can match the posterior cancels the gradient's noise entirely. Its coefficient is
the regression of the gradient on it, in the metric, over past steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from vpng.adaptive.acceptance import Acceptance, Promise
from vpng.adaptive.control_variate import ControlCoefficient
from vpng.adaptive.geometry import AbstractGeometry, Evaluation, Objective, WeightedNoise
from vpng.adaptive.gradient_products import GradientProducts
from vpng.adaptive.metric_average import MetricAverage
from vpng.adaptive.noise_covariance import NoiseCovariance
from vpng.adaptive.reach import Reach, curvature_ratio
from vpng.adaptive.signal import Signal, SignalAndNoise
from vpng.curvature.base import MakeOperator
from vpng.numerics import trees
from vpng.numerics.trust_region import TrustRegion
from vpng.problem import Parameters


class AdaptiveState(NamedTuple):
    """Everything the rule carries from step to step.

    Attributes:
        step: steps done.
        accepted: the last point that passed the test; what to read out.
        candidate: the point to be tested next.
        gradient: at the accepted point.
        geometry: what the geometry carries.
        damping: relative to the metric's diagonal.
        longest: bound on the share of the direction that is stepped.
        promise: what the model says of the step to the candidate.
        signal: how much of the gradient is signal.
        regression: of the gradient on the control variate.
        rejections: steps in a row that were rejected, or had no direction.
        metrics: number of metrics in the geometry's average.
        begun: whether a loss was ever finite; until then the start is drawn in.
    """

    step: Int[Array, ""]
    accepted: Parameters
    candidate: Parameters
    gradient: Parameters
    geometry: PyTree
    damping: Float[Array, ""]
    longest: Float[Array, ""]
    promise: Promise
    signal: Signal
    regression: ControlCoefficient
    rejections: Int[Array, ""]
    metrics: Int[Array, ""]
    begun: Bool[Array, ""]


class AdaptiveInfo(NamedTuple):
    """What one step reports.

    Attributes:
        loss: per datum at the accepted point.
        accepted: whether the candidate was.
        share: how much of the direction was stepped, for every block of the metric.
        damping: relative to the metric's diagonal.
        curvature_ratio: curvature along the step over the metric's.
        written: what the model wrote at the candidate, such as mutable state; None for nothing.
    """

    loss: Float[Array, ""]
    accepted: Bool[Array, ""]
    share: Float[Array, " blocks"]
    damping: Float[Array, ""]
    curvature_ratio: Float[Array, ""]
    written: PyTree = None


MUCH_CURVATURE = 2.0
"""Curvature along a step over the metric's, beyond which the damping does not fall."""


class Trial(NamedTuple):
    """What the test of a candidate says.

    Attributes:
        accepted: whether it is the next point.
        ratio: curvature along the step over the metric's.
        damping: for the next solve.
        longest: share of the next direction that may be stepped.
    """

    accepted: Bool[Array, ""]
    ratio: Float[Array, ""]
    damping: Float[Array, ""]
    longest: Float[Array, ""]


class Adaptive(eqx.Module):
    """The rule.

    Attributes:
        geometry: how the metric is represented.
        num_data: of the problem: losses and metrics are per datum, budgets of noise are not.
        initial_damping: relative to the metric's diagonal.
        acceptance: whether a step is taken.
        trust_region: how the damping follows.
        reach: how long the next step may be.
        signal_and_noise: how much of the direction is signal.
        noise_covariance: what slows loud directions down.
        metric_average: how long a metric is remembered.
    """

    geometry: AbstractGeometry
    num_data: int | float = eqx.field(static=True)
    initial_damping: float = 1e-2
    acceptance: Acceptance = Acceptance()
    trust_region: TrustRegion = TrustRegion(
        lower=0.5, worse=2.0, rejected=4.0, failed=10.0, minimum=1e-6, maximum=1e6
    )
    reach: Reach = Reach()
    signal_and_noise: SignalAndNoise = SignalAndNoise()
    noise_covariance: NoiseCovariance = NoiseCovariance()
    metric_average: MetricAverage = MetricAverage()

    def init(self, params: Parameters) -> AdaptiveState:
        """The state before the first step."""
        dtype = jnp.result_type(*jax.tree.leaves(params))
        num_blocks = self.geometry.num_blocks
        return AdaptiveState(
            step=jnp.zeros((), jnp.int32),
            accepted=params,
            candidate=params,
            gradient=trees.zeros_like(params),
            geometry=self.geometry.init(params),
            damping=jnp.asarray(self.initial_damping, dtype),
            longest=jnp.asarray(self.geometry.initial_share, dtype),
            promise=Promise.none(dtype),
            signal=Signal.unknown(num_blocks, dtype),
            regression=ControlCoefficient.none(num_blocks, dtype),
            rejections=jnp.zeros((), jnp.int32),
            metrics=jnp.zeros((), jnp.int32),
            begun=jnp.zeros((), bool),
        )

    def step(
        self,
        state: AdaptiveState,
        objective: Objective,
        metric_at: Callable[[Parameters], MakeOperator],
    ) -> tuple[AdaptiveState, AdaptiveInfo]:
        """Test the candidate and make the next one.

        Args:
            state: from `init` or the step before.
            objective: the loss with this step's random numbers.
            metric_at: makes the metric at any point.
        """
        tolerated = self.geometry.tolerated_noise
        evaluation = self.geometry.evaluate(objective, state.candidate, state.geometry)
        before = objective.at(state.accepted)
        gradient, apart = self._controlled(evaluation, state.regression)
        trial = self._judged(state, before, evaluation, gradient)
        accepted = trial.accepted
        point = trees.where(accepted, state.candidate, state.accepted)
        here = trees.where(accepted, gradient, self._remembered(state.gradient))
        # Known before this gradient: a share that goes with its noise would bias the step.
        share = self.signal_and_noise.share(state.signal, state.step, tolerated)
        moved = self.num_data * state.promise.square
        weight = self.metric_average.weight(
            state.metrics, state.step, share, state.signal, moved, accepted
        )
        noise = self._noise(state, evaluation, accepted)
        prepared = self.geometry.prepare(
            state.geometry, metric_at(point), point, trial.damping, weight, noise
        )
        direction, matrix, carried = prepared.solve(here, apart, *self._scores(evaluation))
        products = GradientProducts(matrix)
        solved = trees.all_finite(direction)
        usable = accepted & solved
        direction = trees.where(solved, direction, trees.zeros_like(direction))

        nats = self.num_data * products.noise
        first_nats = jnp.where(state.signal.noise_is_unknown, nats, 0.0)
        longest = self.reach.at_start(trial.longest, first_nats)
        length = jnp.minimum(jnp.minimum(share, longest), self.geometry.longest(direction, point))
        if evaluation.draws is not None:
            # Tails of the posterior that are heavier than those of the approximation are loud.
            length = length * self.signal_and_noise.calm(state.signal.noise, nats, tolerated)
        step = self.geometry.by_block(-length, direction)
        # Losses of a higher precision than the parameters' would change their type.
        step = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), step, point)
        square = prepared.square(step)
        raised = self.trust_region.after_failure(trial.damping)
        begun = state.begun | accepted
        damping = jnp.where(solved | ~begun, trial.damping, raised)
        nearer = self.geometry.drawn_in(state.candidate)
        candidate = trees.where(begun, jax.tree.map(jnp.add, point, step), nearer)
        promise = Promise(-trees.inner(here, step) - 0.5 * square, square)
        next_state = AdaptiveState(
            step=state.step + 1,
            accepted=point,
            candidate=candidate,
            gradient=here,
            geometry=prepared.state if carried is None else carried,
            damping=damping,
            longest=longest,
            promise=trees.where(begun, promise, Promise.none(square.dtype)),
            signal=self.signal_and_noise.updated(
                state.signal, products, state.step, tolerated, self.num_data, usable
            ),
            regression=state.regression.updated(products, state.step, usable),
            rejections=jnp.where(usable, 0, state.rejections + 1),
            metrics=state.metrics + ((weight > 0) & prepared.finite),
            begun=begun,
        )
        loss = jnp.mean(jnp.where(accepted, evaluation.losses, before))
        info = AdaptiveInfo(loss, accepted, length, damping, trial.ratio, evaluation.written)
        return _strong(next_state, state), info

    def _controlled(
        self, evaluation: Evaluation, regression: ControlCoefficient
    ) -> tuple[Parameters, Parameters]:
        """The gradient less its control variate: (g_a + g_b) / 2 and (g_a - g_b) / 2."""
        halves = evaluation.gradients
        if evaluation.scores is not None:
            subtracted = self.geometry.by_block(regression.coefficient, evaluation.scores)
            halves = jax.tree.map(jnp.subtract, halves, subtracted)
        apart = jax.tree.map(lambda leaf: 0.5 * (leaf[0] - leaf[1]), halves)
        return _mean(halves), apart

    def _judged(
        self,
        state: AdaptiveState,
        before: Float[Array, " K"],
        evaluation: Evaluation,
        gradient: Parameters,
    ) -> Trial:
        """Whether the candidate is accepted, and what follows for the next step."""
        after, first = evaluation.losses, ~state.begun
        finite = jnp.all(jnp.isfinite(after)) & trees.all_finite(gradient)
        plausible = self.acceptance.accepts(state.promise.gain, before, after, self.num_data)
        accepted = finite & (first | plausible)
        moved = jax.tree.map(jnp.subtract, state.candidate, state.accepted)
        slope = trees.inner(_mean(evaluation.gradients), moved)
        ratio = curvature_ratio(state.promise.square, slope, before, after)
        damping = jnp.where(
            accepted,
            self.trust_region.after_step(state.damping, good=ratio <= MUCH_CURVATURE),
            self.trust_region.after_rejection(state.damping),
        )
        longest = self.reach.after_step(state.longest, accepted, ratio)
        return Trial(
            accepted,
            ratio,
            jnp.where(first, state.damping, damping),
            jnp.where(first, state.longest, longest),
        )

    def _remembered(self, gradient: Parameters) -> Parameters:
        """The gradient at the accepted point, for a step that was rejected.

        Zero for a geometry that cannot solve with it: the candidate is then the accepted point
        itself, whose gradient comes with the next step.
        """
        return gradient if self.geometry.remembers else trees.zeros_like(gradient)

    def _noise(
        self, state: AdaptiveState, evaluation: Evaluation, accepted: Bool[Array, ""]
    ) -> WeightedNoise | None:
        """The covariance of the gradient, for a geometry that knows every particle's."""
        if evaluation.draws is None:
            return None
        covariance = self.noise_covariance.of(
            *evaluation.draws, state.regression.coefficient, self.num_data
        )
        return self.noise_covariance.here(covariance, state.signal, accepted)

    def _scores(self, evaluation: Evaluation) -> list[Parameters]:
        """The control variate of both halves, if there is one and further solves cost little."""
        if evaluation.scores is None or not self.geometry.solves_cheaply:
            return []
        return [jax.tree.map(lambda leaf, at=at: leaf[at], evaluation.scores) for at in (0, 1)]


def _mean(halves: Parameters) -> Parameters:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), halves)


def _strong(new: AdaptiveState, like: AdaptiveState) -> AdaptiveState:
    """`new` with the types of `like`, so that the second step has the signature of the first."""
    return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, like)
