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

from vpng.adaptive.geometry import (
    AbstractGeometry,
    Evaluation,
    NoiseHere,
    Objective,
)
from vpng.curvature.base import MetricHere
from vpng.problem import Parameters
from vpng.products import product


class Regression(NamedTuple):
    """Running means of g.F^-1 h and h.F^-1 h, for the control variate h and every block."""

    product: Float[Array, " blocks"]
    square: Float[Array, " blocks"]

    @property
    def coefficient(self) -> Float[Array, " blocks"]:
        """How much of h to subtract from g."""
        some = self.square > 0
        return jnp.where(
            some, jnp.clip(self.product / jnp.where(some, self.square, 1.0), 0.0, 1.0), 0.0
        )


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
        agreement: running mean of 2 g_a.F^-1 g_b / (g_a.F^-1 g_a + g_b.F^-1 g_b), for every block
            of the metric.
        spread: running mean of its square, likewise.
        noise: running mean of the power d.F^-1 d of the gradient's noise d in nats, likewise.
        memory: number of steps in those means, likewise.
        square: d.F d of the step to the candidate.
        predicted: gain that the quadratic model promised for it.
        regression: of the gradient on the control variate.
        rejections: steps in a row that were rejected, or had no direction.
        metrics: number of metrics in the geometry's average.
    """

    step: Int[Array, ""]
    accepted: Parameters
    candidate: Parameters
    gradient: Parameters
    geometry: PyTree
    damping: Float[Array, ""]
    longest: Float[Array, ""]
    agreement: Float[Array, " blocks"]
    spread: Float[Array, " blocks"]
    noise: Float[Array, " blocks"]
    memory: Float[Array, " blocks"]
    square: Float[Array, ""]
    predicted: Float[Array, ""]
    regression: Regression
    rejections: Int[Array, ""]
    metrics: Int[Array, ""]


class AdaptiveInfo(NamedTuple):
    """What one step reports.

    Attributes:
        loss: per datum at the accepted point.
        accepted: whether the candidate was.
        share: how much of the direction was stepped, for every block of the metric.
        damping: relative to the metric's diagonal.
        curvature_ratio: curvature along the step over the metric's.
    """

    loss: Float[Array, ""]
    accepted: Bool[Array, ""]
    share: Float[Array, " blocks"]
    damping: Float[Array, ""]
    curvature_ratio: Float[Array, ""]


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


MOST_DAMPING = 1e6
"""Beyond which it does not rise."""

LEAST_SHARE = 1e-6
"""Of a direction, however many steps were rejected."""


class Adaptive(eqx.Module):
    """The rule.

    Attributes:
        geometry: how the metric is represented.
        num_data: of the problem: the test of acceptance allows for a tenth of a nat in all.
        initial_damping: relative to the metric's diagonal.
        minimum_damping: below which it does not fall.
        shortest_memory: least number of steps over which signal and noise are told apart.
        free_steps: number of steps after which shares begin to fall with their number.
        noisy_steps: number of steps after which noise may cost half as much as at first.
        usual_noise: a step whose noise has more than this multiple of the usual power is shortened.
        quiet: nats of noise in one direction at which that direction is stepped half as far.
        wide: nats of noise at the start beyond which the first share is at most a tenth.
        far: square of a step, in posterior deviations, after which the metric before it counts for
            half.
        metric_period: steps between evaluations of the metric, once noise is most of the gradient.
    """

    geometry: AbstractGeometry
    num_data: int | float = eqx.field(static=True)
    initial_damping: float = 1e-2
    minimum_damping: float = 1e-6
    shortest_memory: float = 3.0
    free_steps: float = 50.0
    noisy_steps: float = 50.0
    usual_noise: float = 4.0
    quiet: float = 2.0
    wide: float = 1000.0
    far: float = 10.0
    metric_period: int = eqx.field(default=4, static=True)

    def init(self, params: Parameters) -> AdaptiveState:
        """The state before the first step."""
        dtype = jnp.result_type(*jax.tree.leaves(params))
        number = lambda value: jnp.asarray(value, dtype)
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdaptiveState(
            step=jnp.zeros((), jnp.int32),
            accepted=params,
            candidate=params,
            gradient=zeros,
            geometry=self.geometry.init(params),
            damping=number(self.initial_damping),
            longest=number(self.geometry.initial_share),
            agreement=jnp.ones(self.geometry.num_blocks, dtype),
            spread=jnp.ones(self.geometry.num_blocks, dtype),
            noise=jnp.full(self.geometry.num_blocks, jnp.finfo(dtype).max, dtype),
            memory=jnp.ones(self.geometry.num_blocks, dtype),
            square=number(0.0),
            predicted=number(0.0),
            regression=Regression(*[jnp.zeros(self.geometry.num_blocks, dtype)] * 2),
            rejections=jnp.zeros((), jnp.int32),
            metrics=jnp.zeros((), jnp.int32),
        )

    def step(
        self,
        state: AdaptiveState,
        objective: Objective,
        metric_at: Callable[[Parameters], MetricHere],
    ) -> tuple[AdaptiveState, AdaptiveInfo]:
        """Test the candidate and make the next one.

        Args:
            state: from `init` or the step before.
            objective: the loss with this step's random numbers.
            metric_at: makes the metric at any point.
        """
        evaluation = self.geometry.evaluate(objective, state.candidate)
        before = objective.at(state.accepted)
        gradient, halves = self._controlled(evaluation, state.regression)
        trial = self._judged(state, before, evaluation, gradient)
        accepted = trial.accepted
        point = _where(accepted, state.candidate, state.accepted)
        here = _where(accepted, gradient, self._remembered(state.gradient))
        # Known before this gradient: a share that goes with its noise would bias the step.
        share = self._share(state)
        weight = self._metric_weight(state, share, accepted)
        prepared = self.geometry.prepare(
            state.geometry,
            metric_at(point),
            point,
            trial.damping,
            weight,
            self._noise(state, evaluation, accepted),
        )
        # g_a.F^-1 g_b from g = (g_a + g_b) / 2 and d = (g_a - g_b) / 2.
        apart = jax.tree.map(lambda leaf: 0.5 * (leaf[0] - leaf[1]), halves)
        direction, products, carried = prepared.solve(here, apart, *self._scores(evaluation))
        solved = _all_finite(direction)
        usable = accepted & solved
        direction = _where(solved, direction, jax.tree.map(jnp.zeros_like, direction))

        nats = self.num_data * products[:, 1, 1]
        # A start that is far too wide: what its few draws say may turn it inside out.
        wide = jnp.any(_unknown(state.noise) & (nats > self.wide))
        longest = jnp.where(wide, jnp.minimum(trial.longest, 0.1), trial.longest)
        length = jnp.minimum(jnp.minimum(share, longest), self.geometry.longest(direction, point))
        if evaluation.draws is not None:
            length = length * self._calm(state.noise, nats)
        step = self.geometry.by_block(-length, direction)
        # Losses of a higher precision than the parameters' would change their type.
        step = jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), step, point)
        square = prepared.square(step)
        damping = jnp.where(solved, trial.damping, jnp.minimum(10.0 * trial.damping, MOST_DAMPING))
        told = self._told_apart(state, products, usable)
        next_state = told._replace(
            step=state.step + 1,
            accepted=point,
            candidate=jax.tree.map(jnp.add, point, step),
            gradient=here,
            geometry=prepared.state if carried is None else carried,
            damping=damping,
            longest=longest,
            square=square,
            predicted=-_inner(here, step) - 0.5 * square,
            regression=self._regress(state, products, usable),
            rejections=jnp.where(usable, 0, state.rejections + 1),
            metrics=state.metrics + ((weight > 0) & prepared.finite),
        )
        loss = jnp.mean(jnp.where(accepted, evaluation.losses, before))
        info = AdaptiveInfo(loss, accepted, length, damping, trial.ratio)
        return _strong(next_state, state), info

    def _judged(
        self,
        state: AdaptiveState,
        before: Float[Array, " K"],
        evaluation: Evaluation,
        gradient: Parameters,
    ) -> Trial:
        """Whether the candidate is accepted, and what follows for the next step."""
        accepted = self._accepts(state, before, evaluation, gradient)
        ratio = self._curvature_ratio(state, before, evaluation)
        damping = state.damping * jnp.where(accepted, jnp.where(ratio > 2.0, 1.0, 0.5), 4.0)
        damping = jnp.clip(damping, self.minimum_damping, MOST_DAMPING)
        by_curvature = jnp.clip(1.0 / jnp.maximum(ratio, 1.0), 0.25 * state.longest, 1.0)
        longest = jnp.where(
            accepted, jnp.minimum(by_curvature, 2.0 * state.longest), 0.25 * state.longest
        )
        first = state.step == 0
        return Trial(
            accepted,
            ratio,
            jnp.where(first, state.damping, damping),
            jnp.where(first, state.longest, jnp.maximum(longest, LEAST_SHARE)),
        )

    def _remembered(self, gradient: Parameters) -> Parameters:
        """The gradient at the accepted point, for a step that was rejected.

        Zero for a geometry that cannot solve with it: the candidate is then the accepted point
        itself, whose gradient comes with the next step.
        """
        if self.geometry.remembers:
            return gradient
        return jax.tree.map(jnp.zeros_like, gradient)

    def _metric_weight(
        self, state: AdaptiveState, share: Float[Array, " blocks"], accepted: Bool[Array, ""]
    ) -> Float[Array, ""]:
        """The weight of this step's metric in the average; zero if it is not evaluated."""
        weight = jnp.clip(0.5 * jnp.max(share), 0.02, 0.3)
        weight = jnp.maximum(weight, 1.0 / (state.metrics + 1.0))
        # A metric of another place is forgotten, as far as it was signal that led here.
        moved = self.num_data * state.square
        weight = jnp.maximum(weight, 0.9 * _certain(state)[0] * moved / (moved + self.far))
        due = (jnp.max(share) > 0.5) | (state.step % self.metric_period == 0)
        return jnp.where(accepted & (due | (state.metrics == 0)), weight, 0.0)

    def _told_apart(
        self,
        state: AdaptiveState,
        products: Float[Array, "blocks k k"],
        usable: Bool[Array, ""],
    ) -> AdaptiveState:
        """The state with the agreement and the noise of one more step."""
        power, noise = products[:, 0, 0], products[:, 1, 1]
        total, nats = power + noise, self.num_data * noise
        agreement = jnp.where(total > 0, (power - noise) / jnp.where(total > 0, total, 1.0), 0.0)
        rate = jnp.where(usable & jnp.all(jnp.isfinite(agreement)), 1.0 / state.memory, 0.0)
        blend = lambda old, new: jnp.where(rate > 0, (1 - rate) * old + rate * new, old)
        told = state._replace(
            agreement=blend(state.agreement, agreement),
            spread=blend(state.spread, agreement**2),
            noise=jnp.where(_unknown(state.noise) & (rate > 0), nats, blend(state.noise, nats)),
        )
        memory = jnp.where(rate > 0, (1.0 - self._share(told)) * state.memory + 1.0, state.memory)
        least = jnp.minimum(self.shortest_memory, state.step + 1.0)
        return told._replace(memory=jnp.maximum(memory, least))

    def _noise(
        self, state: AdaptiveState, evaluation: Evaluation, accepted: Bool[Array, ""]
    ) -> NoiseHere | None:
        """The covariance of the mean gradient, for a geometry that knows every particle's."""
        if evaluation.draws is None:
            return None
        gradients, scores = evaluation.draws
        rest = gradients - state.regression.coefficient[0] * scores
        rest = rest - jnp.mean(rest, axis=0)
        count = rest.shape[0]
        weight = self.num_data / (self.quiet * count * (count - 1))
        covariance = weight * product(rest.T, rest)
        # What is signal now was noise of another place: it must not slow down the way.
        part = (1.0 - _certain(state)[0]) ** 3
        return NoiseHere(covariance, jnp.where(accepted, 1.0 / state.memory[0], 0.0), part)

    def _calm(
        self, before: Float[Array, " blocks"], now: Float[Array, " blocks"]
    ) -> Float[Array, " blocks"]:
        """What is left of a step whose noise has more power than usual, both in nats."""
        usual = self.usual_noise * (before + self.geometry.tolerated_noise)
        return jnp.sqrt(jnp.where(now > usual, usual / jnp.where(now > 0, now, 1.0), 1.0))

    def _controlled(
        self, evaluation: Evaluation, regression: Regression
    ) -> tuple[Parameters, Parameters]:
        """The gradient less its control variate: the mean, and that of both halves."""
        halves = evaluation.gradients
        if evaluation.scores is not None:
            subtracted = self.geometry.by_block(regression.coefficient, evaluation.scores)
            halves = jax.tree.map(jnp.subtract, halves, subtracted)
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), halves), halves

    def _share(self, state: AdaptiveState) -> Float[Array, " blocks"]:
        """The part of the direction that is signal, never less than a mean over the steps asks.

        The agreement c of the halves is 0 on average if there is noise alone, in any number of
        dimensions; twice its standard error is subtracted: what may be chance does not count. The
        mean of the halves has half their noise, so that 2 c / (1 + c) of it is signal. Steps of a
        share a of a direction with a noise of V nats end a / (2 - a) V / 2 nats above the optimum:
        shares for which that is nothing to speak of are free, however little signal there is.

        Steps that are too long make signal of their own, which brings the next one back. So that
        the iterates settle in any case, a share falls as 1 / t in the end, unless nearly all is
        signal.
        """
        certain = _certain(state)
        allowed = self.geometry.tolerated_noise / (1.0 + (state.step / self.noisy_steps) ** 2)
        least = jnp.maximum(
            1.0 / (1.0 + state.memory), 4.0 * allowed / (state.noise + 2.0 * allowed)
        )
        share = jnp.clip(2.0 * certain / (1.0 + certain), least, 1.0)
        settling = self.free_steps / (self.free_steps + state.step)
        return jnp.minimum(share, jnp.maximum(certain**2, settling))

    def _accepts(
        self,
        state: AdaptiveState,
        before: Float[Array, " K"],
        evaluation: Evaluation,
        gradient: Parameters,
    ) -> Bool[Array, ""]:
        losses = evaluation.losses
        gain = before - losses
        # A gain that varies more than the loss did before is no noise either, but the step's doing.
        spread = jnp.minimum(jnp.std(gain, ddof=1), jnp.std(before, ddof=1))
        error = spread / jnp.sqrt(gain.size)
        rounding = 1e-6 * jnp.abs(jnp.mean(before))
        # A noise larger than the promised gain is no excuse: heavy tails look like that.
        allowed = jnp.maximum(
            2.0 * jnp.minimum(error, state.predicted), 0.1 / self.num_data + rounding
        )
        # No loss falls much faster than its slope: more than that is a density that broke down.
        possible = 30.0 * state.predicted + 1.0 / self.num_data + rounding
        finite = jnp.all(jnp.isfinite(losses)) & _all_finite(gradient)
        plausible = (jnp.mean(gain) > -allowed) & (jnp.mean(gain) < possible)
        return finite & ((state.step == 0) | plausible)

    def _curvature_ratio(
        self, state: AdaptiveState, before: Float[Array, " K"], evaluation: Evaluation
    ) -> Float[Array, ""]:
        moved = jax.tree.map(jnp.subtract, state.candidate, state.accepted)
        plain = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), evaluation.gradients)
        gain = jnp.mean(before - evaluation.losses)
        curvature = 2.0 * (gain + _inner(plain, moved))
        resolution = 30.0 * jnp.finfo(gain.dtype).eps * jnp.mean(jnp.abs(before))
        visible = state.square > resolution
        ratio = jnp.where(visible, curvature / jnp.where(visible, state.square, 1.0), 1.0)
        return jnp.where(jnp.isfinite(ratio), ratio, 100.0)

    def _scores(self, evaluation: Evaluation) -> list[Parameters]:
        """The control variate of both halves, if there is one and further solves cost little."""
        if evaluation.scores is None or not self.geometry.many_solves:
            return []
        take = lambda half: jax.tree.map(lambda leaf: leaf[half], evaluation.scores)
        return [take(0), take(1)]

    def _regress(
        self,
        state: AdaptiveState,
        products: Float[Array, "blocks k k"],
        usable: Bool[Array, ""],
    ) -> Regression:
        """From products of g, d and the scores of both halves, whose gradients are g + d and g - d.

        These are without the control variate: what was subtracted of it is added again.
        """
        old = state.regression
        if products.shape[-1] < 4:
            return old
        square = products[:, 2, 2] + products[:, 3, 3]
        of_mean = products[:, 0, 2] + products[:, 0, 3]
        of_apart = products[:, 1, 2] - products[:, 1, 3]
        product = of_mean + of_apart + old.coefficient * square
        usable = usable & jnp.all(jnp.isfinite(product + square))
        rate = jnp.where(usable, jnp.maximum(1.0 / (state.step + 1.0), 0.1), 0.0)
        mix = lambda before, now: jnp.where(usable, (1 - rate) * before + rate * now, before)
        return Regression(mix(old.product, product), mix(old.square, square))


def _certain(state: AdaptiveState) -> Float[Array, " blocks"]:
    """The agreement of the halves that is no chance."""
    variance = jnp.maximum(state.spread - state.agreement**2, 0.0)
    certain = state.agreement - jnp.sqrt(2.0 * variance / state.memory)
    return jnp.clip(certain, 0.0, 1.0)


def _unknown(noise: Float[Array, " blocks"]) -> Bool[Array, " blocks"]:
    """Whether no step has told it yet."""
    return noise == jnp.finfo(noise.dtype).max


def _where(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def _all_finite(tree: PyTree) -> Bool[Array, ""]:
    return jnp.isfinite(sum(jnp.sum(leaf) for leaf in jax.tree.leaves(tree)))


def _inner(left: PyTree, right: PyTree) -> Float[Array, ""]:
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), left, right)
    return jax.tree.reduce(jnp.add, products, jnp.zeros(()))


def _strong(new: AdaptiveState, like: AdaptiveState) -> AdaptiveState:
    """`new` with the types of `like`, so that the second step has the signature of the first."""
    return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, like)
