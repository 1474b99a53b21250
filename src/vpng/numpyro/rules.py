"""The rules that turn the loss of one step into the next parameters.

Each is a value with pure methods; `SVI` chooses one when it meets the model, and never looks inside
the state that belongs to it.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree
from numpyro.optim import _NumPyroOptim

from vpng.adaptive import Adaptive, AdaptiveInfo
from vpng.curvature.base import MetricHere
from vpng.fisher import AbstractMetric
from vpng.fisher.operator import mean_of
from vpng.numpyro.evaluation import Losses
from vpng.numpyro.problem import Call, TracedProblem
from vpng.problem import Parameters
from vpng.training.guard import after_rejection, trouble_in_optimizer


class Here(NamedTuple):
    """What a rule may ask of one step.

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
        losses: what was evaluated.
        info: what the automatic rule reports.
    """

    state: PyTree
    loss: Float[Array, ""]
    taken: Bool[Array, ""]
    losses: Losses
    info: AdaptiveInfo | None = None


class AbstractRule(eqx.Module):
    """A rule of steps.

    Attributes:
        keeps_good_points: whether a state is never without a point whose loss is finite.
    """

    keeps_good_points: eqx.AbstractClassVar[bool]

    @abstractmethod
    def init(self, parameters: Parameters) -> PyTree:
        """The state before the first step."""

    @abstractmethod
    def step(self, state: PyTree, here: Here) -> Step:
        """One step; none if its loss or the new state is not finite."""

    @abstractmethod
    def point(self, state: PyTree) -> Parameters:
        """Where the last step led."""

    def answer(self, state: PyTree) -> Parameters:
        """What a user reads out."""
        return self.point(state)


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

    def step(self, state: PyTree, here: Here) -> Step:
        problem, calls, subsamples = here.problem, [here.call], []
        # What is seen of single data must be seen by the gradient and by the metric.
        if problem.by_datum:
            calls.append(here.another_call())
            subsamples = [each.subsamples for each in calls]
        losses = here.drawn(*subsamples, with_scores=self.adaptive.geometry.many_solves)

        def metric_at(parameters: Parameters) -> MetricHere:
            make = lambda each: self.metric.operator(problem, parameters, each, here.metric_key)
            return lambda: mean_of([make(each) for each in calls])

        state, info = self.adaptive.step(state, losses, metric_at)
        return Step(state, info.loss, info.accepted, losses, info)

    def point(self, state: PyTree) -> Parameters:
        return state.accepted


class PreconditionedState(NamedTuple):
    """The state of a user's optimizer behind the preconditioner."""

    optimizer: PyTree
    preconditioner: PyTree


class PreconditionedRule(AbstractRule):
    """The gradient preconditioned, and handed to a user's optimizer.

    Attributes:
        optimizer: the user's.
        preconditioner: comes first.
        model_names: parameters of the model alone.
    """

    keeps_good_points: ClassVar[bool] = False

    optimizer: _NumPyroOptim = eqx.field(static=True)
    preconditioner: optax.GradientTransformationExtraArgs = eqx.field(static=True)
    model_names: frozenset[str] = eqx.field(static=True)

    def init(self, parameters: Parameters) -> PreconditionedState:
        return PreconditionedState(
            self.optimizer.init(by_name(parameters)), self.preconditioner.init(parameters)
        )

    def step(self, state: PreconditionedState, here: Here) -> Step:
        parameters = self.point(state)
        losses = here.drawn(halves=False)
        mean, gradient = losses.mean(parameters)
        direction, preconditioner = self.preconditioner.update(
            gradient, state.preconditioner, parameters, batch=here.call, rng_key=here.metric_key
        )
        summed = mean * here.problem.num_data
        optimizer = self.optimizer.update(by_name(direction), state.optimizer, value=summed)
        new = PreconditionedState(optimizer, preconditioner)
        usable = jnp.isfinite(mean) & ~trouble_in_optimizer(new, state).any
        kept = jax.tree.map(partial(jnp.where, usable), new, after_rejection(state))
        return Step(kept, mean, usable, losses)

    def point(self, state: PreconditionedState) -> Parameters:
        raw: dict[str, Any] = self.optimizer.get_params(state.optimizer)
        model = {name: value for name, value in raw.items() if name in self.model_names}
        return Parameters({name: raw[name] for name in raw if name not in model}, model)


def by_name(parameters: Parameters) -> dict[str, PyTree]:
    """The parameters of model and guide in one dictionary, as NumPyro has them."""
    return {**parameters.variational, **parameters.model}
