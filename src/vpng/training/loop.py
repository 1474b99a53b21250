"""A compiled loop: many steps in one program, run as often as one likes."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from enum import Enum
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray, PyTree

from vpng.checks import finite_scalar, of_kind, positive_integer, random_key
from vpng.distributed.faults import stopping_if_lost
from vpng.distributed.layout import Layout, as_layout, compiled
from vpng.distributed.processes import agreed, is_first
from vpng.errors import expected
from vpng.findings import path_name
from vpng.interrupts import Interrupt, deferred_interrupts
from vpng.objective import ELBO
from vpng.problem import Parameters, Problem, check_problem
from vpng.stopping import Converged
from vpng.support import check_support
from vpng.training.checkpoint import Checkpoints, Keeper
from vpng.training.chunks import Chunks
from vpng.training.data import AbstractData, Batches, InMemory, as_data
from vpng.training.guard import Guard
from vpng.training.history import RESERVED, History, Record
from vpng.training.identity import Identity, kind_of
from vpng.training.placed import Placed, placed
from vpng.training.progress import progress_bar
from vpng.training.step import StepInfo, TrainState, init_state
from vpng.training.watched import Watched
from vpng.transform.iterate_average import averaged

Metric = Callable[[Parameters, PRNGKeyArray], Array]
Callback = Callable[[Record, TrainState], bool | None]

Readout = Callable[[TrainState], Parameters]


def current(state: TrainState) -> Parameters:
    """The current parameters."""
    return state.params


def iterate_averaged(state: TrainState) -> Parameters:
    """The average of the iterates, for an optimizer with `vpng.transform.iterate_average`."""
    return averaged(state.optimizer)


class StopReason(Enum):
    """Why a run ended."""

    STEPS = "all steps were done"
    SECONDS = "the time was used up"
    CALLBACK = "a callback asked to stop"
    CONVERGED = "the loss no longer improves by more than its noise"
    INTERRUPTED = "a signal asked to stop; the checkpoint is the place to go on from"
    NOT_FINITE = (
        "too many steps in a row had a loss, gradient or update that is not finite; the parameters "
        "are the last good ones. "
        "Lower the learning rate, raise the damping, look at the data or use float64"
    )


_FINAL = (StopReason.CALLBACK, StopReason.NOT_FINITE, StopReason.CONVERGED)
"""Endings that more steps or more time do not undo."""


class FitResult(NamedTuple):
    """A finished run.

    Attributes:
        params: the final parameters, as read out.
        state: the final state, from which a run can go on.
        history: the records of the run.
        stop_reason: why it ended.
    """

    params: Parameters
    state: TrainState
    history: History
    stop_reason: StopReason

    @property
    def causes(self) -> list[str]:
        """What was not finite, and when: of each record with dropped steps the first."""
        return [record.cause for record in self.history.records if record.cause]


class Loop:
    """Training compiled for one problem, optimizer and shape of data.

    `fit` makes one and runs it once. Make one yourself to run it several times without compiling
    again: from other parameters and keys, or with hyper-parameters that live in the optimizer's
    state (`optax.inject_hyperparams`).
    """

    def __init__(
        self,
        problem: Problem,
        params: Parameters,
        data: PyTree | AbstractData,
        optimizer: optax.GradientTransformation,
        *,
        objective: ELBO = ELBO(),
        batch_size: int | None = None,
        record_every: int = 100,
        metrics: Mapping[str, Metric] | None = None,
        readout: Readout = current,
        guard: Guard | None = Guard(),
        mesh: Mesh | Layout | None = None,
    ) -> None:
        """Check and compile; the arguments are those of `fit`.

        Raises:
            InputError: if an argument does not fit.
        """
        positive_integer("record_every", record_every)
        of_kind("problem", problem, Problem, "a vpng.Problem")
        of_kind("optimizer", optimizer, optax.GradientTransformation, "an optax transformation")
        of_kind("objective", objective, ELBO, "an objective such as ELBO(10)")
        of_kind("guard", guard, Guard | None, "Guard(), or None for none")
        self._layout = as_layout(mesh)
        self._data = placed(as_data(data), self._layout)
        if problem.num_data != len(self._data):
            raise expected("data", f"problem.num_data = {problem.num_data} data", len(self._data))
        self._batches = Batches(len(self._data), batch_size, self._data.num_blocks)
        self._optimizer = optimizer
        self._identity: Identity | None = None
        self._about = {
            "problem": problem,
            "objective": objective,
            "batches": self._batches,
            "record_every": record_every,
        }
        check_problem(problem, params, self._data.few())
        if isinstance(self._data, InMemory):
            check_support(problem, params, self._data.everything())
        state = self.init(params, jax.random.key(0))
        self._chunks = Chunks(
            problem,
            optimizer,
            objective,
            self._batches,
            guard=guard,
            length=record_every,
            state=state,
            data=self._data,
            layout=self._layout,
        )
        whole = {} if self._layout is None else {"out_shardings": self._layout.everywhere}
        self._readout = jax.jit(readout, **whole)
        self._measure = _compile_metrics(metrics or {}, state, readout, self._layout)

    def on(
        self, data: PyTree | AbstractData, *, metrics: Mapping[str, Metric] | None = None
    ) -> "Loop":
        """The same compiled steps on other data of the same shapes.

        Args:
            data: what the steps see.
            metrics: measured instead of those that the loop was made with, and not compiled by it;
                None for the same ones.

        Raises:
            InputError: if the data differ in structure, shape or type.
        """
        other = copy(self)
        other._data = placed(as_data(data), self._layout)
        own, given = (_kinds(held) for held in (self._data, other._data))
        if own != given:
            raise expected("data", f"arrays as the loop was made with, {own}", given)
        other._identity = None
        if metrics is not None:
            _check_names(metrics)
            other._measure = lambda state: _floats(_evaluated(metrics, state, self._readout))
        return other

    def init(
        self,
        params: Parameters,
        rng_key: PRNGKeyArray,
        optimizer: optax.GradientTransformation | None = None,
    ) -> TrainState:
        """The state before the first step.

        Args:
            params: where to start.
            rng_key: the same key gives the same run.
            optimizer: one that differs from the loop's own in nothing but the state that it starts
                with; None for the loop's own.
        """
        optimizer = self._optimizer if optimizer is None else optimizer
        key = random_key("rng_key", rng_key)
        return self._placed(init_state(key, params, optimizer, self._batches))

    def _placed(self, state: PyTree) -> PyTree:
        return state if self._layout is None else self._layout.put_state(state)

    def run(
        self,
        state: TrainState,
        num_steps: int,
        *,
        max_seconds: float | None = None,
        stop: Converged | None = None,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
        checkpoints: Checkpoints | None = None,
        resume: bool = False,
    ) -> FitResult:
        """Go on from `state`; the arguments are those of `fit`.

        Raises:
            InputError: if an argument does not fit.
        """
        positive_integer("num_steps", num_steps)
        if max_seconds is not None:
            finite_scalar("max_seconds", max_seconds, minimum=0.0, strict=True)
        of_kind("stop", stop, Converged | None, "a rule such as Converged(), or None")
        of_kind("checkpoints", checkpoints, Checkpoints | None, "Checkpoints(folder), or None")
        for place, callback in enumerate(callbacks):
            if not callable(callback):
                raise expected(f"callbacks[{place}]", "a function (record, state)", repr(callback))
        if stop is not None:
            num_steps = min(num_steps, stop.max_steps)
        last_step = min(int(state.step) + num_steps, np.iinfo(np.int32).max)
        state = self._placed(state)
        history, seconds, reason = History(), 0.0, None
        keeper = None if checkpoints is None else self._keeper(checkpoints, state, resume)
        if keeper is not None and keeper.found is not None:
            restored, history, seconds, ending = keeper.found
            state = self._chunks.go_on_with(self._placed(restored))
            reason = None if ending is None else StopReason[ending]
        if max_seconds is not None and seconds >= max_seconds:
            reason = StopReason.SECONDS
        signals = nullcontext(Interrupt()) if keeper is None else deferred_interrupts()
        shown = progress_bar(num_steps, enabled=progress and is_first())
        with stopping_if_lost(), signals as interrupt, shown as bar:
            while reason is None and int(state.step) < last_step:
                done = int(state.step)
                state, info, spent = self._chunks.run(state, self._data, last_step)
                seconds += spent
                step = int(state.step)
                count = step - done
                record = _record(step, seconds, info, count, self._measure(state))
                history.records.append(record)
                history.losses.append(np.asarray(info.loss)[:count])
                bar.advance(count, record)
                stops = [bool(callback(record, state)) for callback in callbacks]
                if any(stops):
                    reason = StopReason.CALLBACK
                elif self._hopeless(state, record.rejected == count and step >= last_step):
                    state, reason = self._chunks.last_good(state), StopReason.NOT_FINITE
                elif stop is not None and stop.reached_between(done, step, history.latest):
                    reason = StopReason.CONVERGED
                elif max_seconds is not None and seconds >= max_seconds:
                    reason = StopReason.SECONDS
                elif step < last_step and interrupt:
                    reason = StopReason.INTERRUPTED
                reason = agreed(reason, tuple(StopReason))
                if keeper is not None:
                    keeper.note([record], history.losses[-1])
                    if reason is not None or step >= last_step or keeper.due(step):
                        ending = reason.name if reason in _FINAL else None
                        keeper.save(step, self._whole(state), seconds, ending)
        reason = reason or StopReason.STEPS
        _warn_of_rejections(history, reason)
        params = self._readout(state)
        if self._layout is not None:
            params = self._layout.local(params)
        return FitResult(params, state, history, reason)

    def _hopeless(self, state: TrainState, ends_so: bool) -> bool:
        guard, in_a_row = self._chunks.guard, int(state.rejected_in_a_row)
        return guard is not None and (ends_so or in_a_row >= guard.max_rejections)

    def _keeper(self, checkpoints: Checkpoints, state: TrainState, resume: bool) -> Keeper:
        if self._identity is None:
            data = self._data.data if isinstance(self._data, Placed) else self._data
            about = {**self._about, "data": data}
            self._identity = Identity.of(state, about, self._chunks.step, state, self._data)
        keeper = Keeper(checkpoints, self._identity, self._whole(state), resume=resume)
        if keeper.found is None:
            # The first one shows that the others can be written too.
            keeper.write(int(state.step), self._whole(state), 0.0)
        return keeper

    def _whole(self, state: TrainState) -> Watched:
        """All that the next chunk reads, where this process can read it."""
        watched = self._chunks.known(state)
        return watched if self._layout is None else self._layout.gathered(watched)


def _warn_of_rejections(history: History, reason: StopReason) -> None:
    rejected = sum(record.rejected for record in history.records)
    if rejected:
        steps = len(history.step_losses)
        first = next((record.cause for record in history.records if record.cause), "")
        end = f". Stopped: {reason.value}." if reason is StopReason.NOT_FINITE else "."
        named = f", first: {first}" if first else ""
        message = f"vpng: {rejected} of {steps} steps were not finite and were dropped{named}{end}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def _compile_metrics(
    metrics: Mapping[str, Metric], state: TrainState, readout: Readout, layout: Layout | None
) -> Callable[[TrainState], dict[str, float]]:
    if not metrics:
        return lambda state: {}
    _check_names(metrics)
    measure = compiled(layout, lambda state: _evaluated(metrics, state, readout), state)
    return lambda state: _floats(measure(state))


def _check_names(metrics: Mapping[str, Metric]) -> None:
    """Refuse metrics that would hide what every record has."""
    for name, metric in metrics.items():
        if name in RESERVED:
            raise expected(
                "metrics", f"names other than those of every record, {', '.join(RESERVED)}", name
            )
        if not callable(metric):
            raise expected(f"metrics[{name!r}]", "a function (params, rng_key)", repr(metric))


def _kinds(data: AbstractData) -> str:
    """The shape and type of every array of the data, in words."""
    leaves = jax.tree_util.tree_leaves_with_path(data)
    return ", ".join(f"{path_name(path)}: {kind_of(leaf)}" for path, leaf in leaves)


def _floats(values: Mapping[str, Array]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def _evaluated(
    metrics: Mapping[str, Metric], state: TrainState, readout: Readout
) -> dict[str, Array]:
    # Apart from the keys of the steps, and the same at every record: common random numbers.
    key = jax.random.fold_in(state.rng_key, 2**32 - 1)
    params = readout(state)
    values = {name: metric(params, key) for name, metric in metrics.items()}
    for name, value in values.items():
        if np.ndim(value) != 0:
            raise expected(f"metrics[{name!r}]", "a single number", f"shape {np.shape(value)}")
    return values


def _record(
    iteration: int, seconds: float, info: StepInfo, count: int, metrics: dict[str, float]
) -> Record:
    losses = np.asarray(info.loss, dtype=np.float64)[:count]
    rejected = np.asarray(info.rejected)[:count]
    kept = losses[~rejected]
    loss = float(kept.mean()) if kept.size else float("nan")
    error = float(kept.std(ddof=1) / np.sqrt(kept.size)) if kept.size > 1 else float("inf")
    cause = ""
    if info.trouble is not None and rejected.any():
        first = int(rejected.argmax())
        cause = f"{info.trouble.words((first,))} at step {iteration - count + first + 1}"
    return Record(iteration, seconds, loss, error, int(rejected.sum()), metrics, cause)
