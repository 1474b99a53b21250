"""One step of training as a pure function of its state."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from vpng.objective import ELBO
from vpng.problem import Parameters, Problem
from vpng.training.data import AbstractData, Batches


class TrainState(NamedTuple):
    """Everything a run needs to go on.

    Attributes:
        step: steps done, rejected ones included.
        params: the current parameters.
        optimizer: the optimizer's state.
        order: the order of the data in this epoch.
        rng_key: the key of the whole run; every step folds its number into it.
    """

    step: Int[Array, ""]
    params: Parameters
    optimizer: PyTree
    order: Int[Array, " n"]
    rng_key: PRNGKeyArray


class StepInfo(NamedTuple):
    """What one step reports.

    Attributes:
        loss: -ELBO per datum at the parameters before the step.
        standard_error: of that loss over the particles.
        rejected: whether the step was dropped because the loss or the update was not finite.
    """

    loss: Float[Array, ""]
    standard_error: Float[Array, ""]
    rejected: Bool[Array, ""]


Step = Callable[[TrainState, AbstractData], tuple[TrainState, StepInfo]]


def init_state(
    rng_key: PRNGKeyArray,
    params: Parameters,
    optimizer: optax.GradientTransformation,
    batches: Batches,
) -> TrainState:
    """The state before the first step."""
    # Strong types from the start, so that the second step has the same signature as the first.
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), params)
    return TrainState(
        jnp.zeros((), jnp.int32), params, optimizer.init(params), batches.init(), rng_key
    )


def make_step(
    problem: Problem,
    optimizer: optax.GradientTransformation,
    objective: ELBO,
    batches: Batches,
) -> Step:
    """The function (state, data) -> (state, info) of one step.

    It is pure: it may be compiled, scanned and vectorised over states. A step whose loss or update
    is not finite leaves parameters and optimizer as they were and is marked as rejected.
    """
    optimizer = optax.with_extra_args_support(optimizer)

    def step(state: TrainState, data: AbstractData) -> tuple[TrainState, StepInfo]:
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
        )
        sums = [jnp.sum(leaf) for leaf in jax.tree.leaves(updates)]
        accepted = jnp.isfinite(estimate.loss) & jnp.isfinite(sum(sums))
        keep = lambda new, old: jnp.where(accepted, new, old)
        moved = optax.apply_updates(state.params, updates)
        next_state = TrainState(
            state.step + 1,
            jax.tree.map(keep, moved, state.params),
            jax.tree.map(keep, optimizer_state, state.optimizer),
            order,
            state.rng_key,
        )
        return next_state, StepInfo(estimate.loss, estimate.standard_error, ~accepted)

    return step
