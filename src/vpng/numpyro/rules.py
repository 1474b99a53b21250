"""The rules that turn the loss of one step into the next parameters.

Each is a value with pure methods; `SVI` chooses one when it meets the model, and never looks inside
the state that belongs to it.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from vpng.adaptive import Adaptive, AdaptiveInfo
from vpng.curvature.base import MakeOperator
from vpng.fisher import AbstractMetric
from vpng.fisher.operator import mean_of
from vpng.numpyro.evaluation import Losses
from vpng.numpyro.problem import Call, TracedProblem
from vpng.problem import Parameters
from vpng.run.history import History

MAX_REJECTIONS = 30
"""Steps in a row that cannot be taken, after which a run stops."""


class StepInputs(NamedTuple):
    """What a rule is given for one step.

    Attributes:
        problem: the model and the guide.
        call: what they are called with, minibatches included.
        another_call: the same with other minibatches.
        drawn: makes the losses of this step, with the arguments of `Losses.drawn` after the call.
        metric_key: of the metric.
    """

    problem: TracedProblem
    call: Call
    another_call: Callable[[], Call]
    drawn: Callable[..., Losses]
    metric_key: PRNGKeyArray


class Step(NamedTuple):
    """What a rule made of a step.

    Attributes:
        state: the next one.
        loss: per datum.
        taken: whether the step was, and with it the mutable state that was written.
        written: the mutable state, as the model wrote it.
        exploded: whether the loss had, and the step leads back to a good point.
        info: what the automatic rule reports.
    """

    state: PyTree
    loss: Float[Array, ""]
    taken: Bool[Array, ""]
    written: PyTree
    exploded: Bool[Array, ""]
    info: AdaptiveInfo | None = None


class AbstractRule(eqx.Module):
    """A rule of steps. Its states have a field `accepted`: the parameters to read out.

    Attributes:
        keeps_good_points: whether a state is never without a point whose loss is finite.
    """

    keeps_good_points: eqx.AbstractClassVar[bool]

    @abstractmethod
    def init(self, parameters: Parameters) -> PyTree:
        """The state before the first step."""

    @abstractmethod
    def step(self, state: PyTree, inputs: StepInputs) -> Step:
        """One step; none if its loss or the new state is not finite."""

    @abstractmethod
    def point(self, state: PyTree) -> Parameters:
        """Where the last step led."""

    def is_stuck(self, state: PyTree, history: History) -> bool:
        """Whether step after step was dropped: only what is not finite does that."""
        losses = history.latest(MAX_REJECTIONS)
        return len(losses) == MAX_REJECTIONS and not np.any(np.isfinite(losses))


class AutomaticRule(AbstractRule):
    """`vpng.adaptive.Adaptive` in a metric.

    Attributes:
        adaptive: the rule.
        metric: F.
    """

    keeps_good_points: ClassVar[bool] = True

    adaptive: Adaptive
    metric: AbstractMetric

    def init(self, parameters: Parameters) -> PyTree:
        return self.adaptive.init(parameters)

    def step(self, state: PyTree, inputs: StepInputs) -> Step:
        problem, calls, subsamples = inputs.problem, [inputs.call], []
        # What is seen of single data must be seen by the gradient and by the metric.
        if problem.by_datum:
            calls.append(inputs.another_call())
            subsamples = [each.subsamples for each in calls]
        losses = inputs.drawn(*subsamples, with_scores=self.adaptive.geometry.solves_cheaply)

        def metric_at(parameters: Parameters) -> MakeOperator:
            make = lambda each: self.metric.operator(problem, parameters, each, inputs.metric_key)
            return lambda: mean_of([make(each) for each in calls])

        state, info = self.adaptive.step(state, losses, metric_at)
        return Step(state, info.loss, info.accepted, info.written, jnp.zeros((), bool), info)

    def point(self, state: PyTree) -> Parameters:
        return state.accepted

    def is_stuck(self, state: PyTree, history: History) -> bool:
        return int(state.rejections) >= MAX_REJECTIONS


class FixedState(NamedTuple):
    """The state of a rule that has nothing to move."""

    accepted: Parameters


class NothingToLearn(AbstractRule):
    """For a model and a guide without parameters: every step is taken, and leads nowhere."""

    keeps_good_points: ClassVar[bool] = True

    def init(self, parameters: Parameters) -> FixedState:
        return FixedState(parameters)

    def step(self, state: FixedState, inputs: StepInputs) -> Step:
        losses = inputs.drawn(halves=False)
        mean, _, written = losses.mean_and_written(state.accepted)
        return Step(state, mean, jnp.isfinite(mean), written, jnp.zeros((), bool))

    def point(self, state: FixedState) -> Parameters:
        return state.accepted


def by_name(parameters: Parameters) -> dict[str, PyTree]:
    """The parameters of model and guide in one dictionary, as NumPyro has them."""
    return {**parameters.variational, **parameters.model}


def split_by_name(params: dict[str, PyTree], model_names: frozenset[str]) -> Parameters:
    """The parameters of NumPyro's one dictionary, those of the model alone apart."""
    model = {name: value for name, value in params.items() if name in model_names}
    return Parameters({name: params[name] for name in params if name not in model}, model)
