"""The loop: compiled chunks of many steps."""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from vpng.checks import finite_scalar, positive_integer
from vpng.errors import expected
from vpng.objective import ELBO
from vpng.problem import Parameters, Problem, check_problem
from vpng.training.data import AbstractData, Batches, as_data
from vpng.training.history import History, Record
from vpng.training.progress import progress_bar
from vpng.training.step import StepInfo, TrainState, init_state, make_step

Metric = Callable[[Parameters, PRNGKeyArray], Array]
Callback = Callable[[Record, TrainState], bool | None]

MAX_REJECTED_CHUNKS = 3


class StopReason(Enum):
    """Why a run ended."""

    STEPS = "all steps were done"
    SECONDS = "the time was used up"
    CALLBACK = "a callback asked to stop"
    NOT_FINITE = (
        "step after step had a loss or an update that is not finite; the parameters are the last "
        "good ones. Lower the learning rate, raise the damping or look at the data"
    )


class FitResult(NamedTuple):
    """A finished run.

    Attributes:
        params: the final parameters.
        state: the final state, from which a run can go on.
        history: the records of the run.
        stop_reason: why it ended.
    """

    params: Parameters
    state: TrainState
    history: History
    stop_reason: StopReason


def fit(
    problem: Problem,
    params: Parameters,
    data: PyTree | AbstractData,
    optimizer: optax.GradientTransformation,
    num_steps: int,
    rng_key: PRNGKeyArray,
    *,
    objective: ELBO = ELBO(),
    batch_size: int | None = None,
    max_seconds: float | None = None,
    record_every: int = 100,
    metrics: Mapping[str, Metric] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    init_from: TrainState | None = None,
) -> FitResult:
    """Minimise the loss of `problem` on `data`.

    The steps run in compiled chunks of `record_every`; after each a record is made, the metrics are
    evaluated and the callbacks are called, outside the clock.

    Args:
        problem: what is fitted.
        params: where to start.
        data: a pytree of arrays with the data along the first axis, or an `AbstractData`.
        optimizer: any optax transformation; it gets `value`, `batch`, `rng_key` and `full_params`.
        num_steps: most steps to do.
        rng_key: the same key gives the same run.
        objective: particles, KL weight and gradient estimator.
        batch_size: data per step, shuffled every epoch; None for all.
        max_seconds: time for the steps, without compilation and evaluation.
        record_every: steps in a chunk.
        metrics: functions (params, rng_key) -> scalar, compiled.
        callbacks: functions (record, state) -> True to stop.
        progress: whether to show a progress bar.
        init_from: a state to go on from, instead of `params`.

    Returns:
        The final parameters and state, the history and the reason for stopping.

    Raises:
        InputError: if an argument does not fit.
    """
    positive_integer("num_steps", num_steps)
    positive_integer("record_every", record_every)
    if max_seconds is not None:
        finite_scalar("max_seconds", max_seconds, minimum=0.0, strict=True)
    source = as_data(data)
    if problem.num_data != len(source):
        raise expected("data", f"problem.num_data = {problem.num_data} data", len(source))
    batches = Batches(len(source), batch_size)
    check_problem(problem, params, source.take(jnp.arange(min(len(source), 2))))

    state = init_state(rng_key, params, optimizer, batches) if init_from is None else init_from
    last_step = int(state.step) + num_steps
    chunk = _compile_chunk(
        make_step(problem, optimizer, objective, batches), record_every, state, source
    )
    measure = _compile_metrics(metrics or {}, state)

    history, seconds, barren = History(), 0.0, 0
    reason = StopReason.STEPS
    with progress_bar(num_steps, enabled=progress) as bar:
        while int(state.step) < last_step:
            done = int(state.step)
            started = time.perf_counter()
            state, info = jax.block_until_ready(chunk(state, source, jnp.int32(last_step)))
            seconds += time.perf_counter() - started
            count = int(state.step) - done
            record = _record(int(state.step), seconds, info, count, measure(state))
            history.records.append(record)
            history.losses.append(np.asarray(info.loss)[:count])
            bar.advance(count, record)
            stops = [bool(callback(record, state)) for callback in callbacks]
            barren = barren + 1 if record.rejected == count else 0
            if any(stops):
                reason = StopReason.CALLBACK
            elif barren >= MAX_REJECTED_CHUNKS or (barren and int(state.step) >= last_step):
                reason = StopReason.NOT_FINITE
            elif max_seconds is not None and seconds >= max_seconds:
                reason = StopReason.SECONDS
            else:
                continue
            break
    rejected = sum(record.rejected for record in history.records)
    if rejected:
        warnings.warn(
            f"vpng.fit: {rejected} of {int(state.step)} steps were not finite and were dropped"
            + (f"; stopped: {reason.value}." if reason is StopReason.NOT_FINITE else "."),
            RuntimeWarning,
            stacklevel=2,
        )
    return FitResult(state.params, state, history, reason)


def _compile_chunk(
    step: Callable[[TrainState, AbstractData], tuple[TrainState, StepInfo]],
    length: int,
    state: TrainState,
    data: AbstractData,
) -> Callable[[TrainState, AbstractData, Array], tuple[TrainState, StepInfo]]:
    def chunk(
        state: TrainState, data: AbstractData, last_step: Array
    ) -> tuple[TrainState, StepInfo]:
        def body(state: TrainState, _: None) -> tuple[TrainState, StepInfo]:
            # One program for every chunk: the last, shorter one idles through its rest.
            _, shapes = jax.eval_shape(step, state, data)
            idle = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return jax.lax.cond(
                state.step < last_step, lambda s: step(s, data), lambda s: (s, idle), state
            )

        return jax.lax.scan(body, state, length=length)

    return jax.jit(chunk).lower(state, data, jnp.int32(0)).compile()


def _compile_metrics(
    metrics: Mapping[str, Metric], state: TrainState
) -> Callable[[TrainState], dict[str, float]]:
    if not metrics:
        return lambda state: {}

    def evaluate(state: TrainState) -> dict[str, Array]:
        # Apart from the keys of the steps, and the same at every record: common random numbers.
        key = jax.random.fold_in(state.rng_key, 2**32 - 1)
        return {name: metric(state.params, key) for name, metric in metrics.items()}

    compiled = jax.jit(evaluate).lower(state).compile()
    return lambda state: {name: float(value) for name, value in compiled(state).items()}


def _record(
    iteration: int, seconds: float, info: StepInfo, count: int, metrics: dict[str, float]
) -> Record:
    losses = np.asarray(info.loss, dtype=np.float64)[:count]
    rejected = np.asarray(info.rejected)[:count]
    kept = losses[~rejected]
    loss = float(kept.mean()) if kept.size else float("nan")
    error = float(kept.std(ddof=1) / np.sqrt(kept.size)) if kept.size > 1 else float("inf")
    return Record(iteration, seconds, loss, error, int(rejected.sum()), metrics)
