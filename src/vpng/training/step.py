"""One step of training as a pure function of its state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from vpng.not_finite import NotFinite, not_finite_in
from vpng.objective import ELBO, Estimate
from vpng.problem import AbstractProblem, Parameters
from vpng.training.data import AbstractData, Batches
from vpng.training.guard import Trouble, after_rejection, trouble_in_loss, trouble_in_optimizer


class TrainState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
        step: steps done, rejected ones included.
        params: the current parameters.
        optimizer: the optimizer's state.
        order: the order of the data in this epoch.
        rng_key: the key of the whole run; every step folds its number into it.
        rejected: steps dropped so far because something was not finite.
        rejected_in_a_row: the last so many of them, without a good step between.
    """

    step: Int[Array, ""]
    params: Parameters
    optimizer: PyTree
    order: Int[Array, " n"]
    rng_key: PRNGKeyArray
    rejected: Int[Array, ""]
    rejected_in_a_row: Int[Array, ""]


class StepInfo(NamedTuple):
    """What one step reports.

    Attributes:
        loss: -ELBO per datum at the parameters before the step.
        standard_error: of that loss over the particles.
        rejected: whether the step was dropped because something was not finite; of a step that is
            not examined, whether the optimizer found something of the kind.
        trouble: what that was; None if the step was not examined.
        exploded: whether the loss was found to have exploded, and the run went back.
    """

    loss: Float[Array, ""]
    standard_error: Float[Array, ""]
    rejected: Bool[Array, ""]
    trouble: Trouble | None
    exploded: Bool[Array, ""] | bool = False


Step = Callable[[TrainState, AbstractData], tuple[TrainState, StepInfo]]
LossAt = Callable[[Parameters], Float[Array, ""]]
PartialStep = Callable[
    [TrainState, AbstractData, Float[Array, ""] | float], tuple[TrainState, StepInfo, LossAt]
]
"""A step of which a share is taken, and the loss of other parameters at its data and key."""


def init_state(
    rng_key: PRNGKeyArray,
    params: Parameters,
    optimizer: optax.GradientTransformation,
    batches: Batches,
) -> TrainState:
    """The state before the first step."""
    # Strong types from the start, so that the second step has the same signature as the first.
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), params)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, optimizer.init(params), batches.init(), rng_key, zero, zero)


class _Attempt(NamedTuple):
    """A step before it is judged."""

    estimate: Estimate
    loss_at: LossAt
    gradient: Parameters
    params: Parameters
    optimizer: PyTree
    order: Int[Array, " n"]
    batch: PyTree
    objective_key: PRNGKeyArray


def make_step(
    problem: AbstractProblem,
    optimizer: optax.GradientTransformation,
    objective: ELBO,
    batches: Batches,
) -> Step:
    """The function (state, data) -> (state, info) of one step.

    It is pure: it may be compiled, scanned and vectorised over states. A step in which the loss,
    the gradient, the metric, the update or the optimizer's new state is not finite leaves
    parameters and optimizer as they were, but for the damping, and is marked as rejected.
    """
    examined = make_examined_step(problem, optimizer, objective, batches)

    def step(state: TrainState, data: AbstractData) -> tuple[TrainState, StepInfo]:
        state, info, _ = examined(state, data, 1.0)
        return state, info

    return step


def make_examined_step(
    problem: AbstractProblem,
    optimizer: optax.GradientTransformation,
    objective: ELBO,
    batches: Batches,
) -> PartialStep:
    """`make_step` of which a share is taken."""
    attempt = _make_attempt(problem, optimizer, objective, batches)

    def step(
        state: TrainState, data: AbstractData, share: Float[Array, ""] | float
    ) -> tuple[TrainState, StepInfo, LossAt]:
        new = attempt(state, data, share)
        trouble = Trouble(
            trouble_in_loss(
                new.objective_key, problem, objective, state.params, new.batch, new.estimate.loss
            ),
            NotFinite.in_tree("gradient", new.gradient),
            not_finite_in(new.optimizer),
            NotFinite.in_tree("update", new.params),
            trouble_in_optimizer(new.optimizer, state.optimizer),
            NotFinite.none([]),
        )
        rejected = trouble.rejects(new.estimate.loss)
        keep = lambda now, before: jnp.where(rejected, before, now)
        next_state = TrainState(
            state.step + 1,
            jax.tree.map(keep, new.params, state.params),
            jax.tree.map(keep, new.optimizer, after_rejection(state.optimizer)),
            new.order,
            state.rng_key,
            state.rejected + rejected,
            jnp.where(rejected, state.rejected_in_a_row + 1, 0),
        )
        info = StepInfo(new.estimate.loss, new.estimate.standard_error, rejected, trouble)
        return next_state, info, new.loss_at

    return step


def make_bare_step(
    problem: AbstractProblem,
    optimizer: optax.GradientTransformation,
    objective: ELBO,
    batches: Batches,
) -> PartialStep:
    """`make_examined_step` without a look at whether anything is finite, and without its cost."""
    attempt = _make_attempt(problem, optimizer, objective, batches)

    def step(
        state: TrainState, data: AbstractData, share: Float[Array, ""] | float
    ) -> tuple[TrainState, StepInfo, LossAt]:
        new = attempt(state, data, share)
        next_state = state._replace(
            step=state.step + 1, params=new.params, optimizer=new.optimizer, order=new.order
        )
        found = not_finite_in(new.optimizer).any
        info = StepInfo(new.estimate.loss, new.estimate.standard_error, found, None)
        return next_state, info, new.loss_at

    return step


def _make_attempt(
    problem: AbstractProblem,
    optimizer: optax.GradientTransformation,
    objective: ELBO,
    batches: Batches,
) -> Callable[[TrainState, AbstractData, Float[Array, ""] | float], _Attempt]:
    optimizer = optax.with_extra_args_support(optimizer)

    def attempt(state: TrainState, data: AbstractData, share: Float[Array, ""] | float) -> _Attempt:
        key = jax.random.fold_in(state.rng_key, state.step)
        objective_key, optimizer_key = jax.random.split(key)
        batch, order = batches.next(data, state.rng_key, state.step, state.order)
        estimate, gradient = objective.estimate_and_gradient(
            objective_key, problem, state.params, batch, step=state.step
        )
        updates, optimizer_state = optimizer.update(
            gradient,
            state.optimizer,
            state.params,
            value=estimate.loss,
            batch=batch,
            rng_key=optimizer_key,
            full_params=state.params,
            share=share,
        )
        part = jax.tree.map(lambda update: (share * update).astype(update.dtype), updates)
        moved: Any = optax.apply_updates(state.params, part)
        loss_at = lambda params: (
            objective.estimate(objective_key, problem, params, batch, step=state.step).loss
        )
        return _Attempt(
            estimate, loss_at, gradient, moved, optimizer_state, order, batch, objective_key
        )

    return attempt
