"""A compiled loop: many steps in one program, run as often as one likes."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray, PyTree

from vpng.checks import finite_scalar, of_kind, positive_integer, random_key
from vpng.distributed.layout import Layout, as_layout, compiled
from vpng.errors import expected
from vpng.numerics.trees import path_name
from vpng.objective import ELBO
from vpng.problem import AbstractProblem, Parameters, Problem, check_problem
from vpng.problem.support import check_support
from vpng.run.checkpoint import Checkpoints
from vpng.run.history import RESERVED, History, Record
from vpng.run.identity import kind_of
from vpng.run.outcome import Outcome, StopReason
from vpng.run.runner import Runner
from vpng.run.stopping import Converged
from vpng.runtime.compilation import USUAL_STEPS
from vpng.training.chunks import Chunks, TrainingSteps
from vpng.training.data import AbstractData, Batches, InMemory, as_data
from vpng.training.guard import Guard
from vpng.training.placed import placed
from vpng.training.step import TrainState, init_state
from vpng.training.watched import Bare, Watched
from vpng.transform.iterate_averaging import averaged

Measure = Callable[[Parameters, PRNGKeyArray], Array]
Callback = Callable[[Record, TrainState], bool | None]

Readout = Callable[[TrainState], Parameters]


def current(state: TrainState) -> Parameters:
    """The current parameters."""
    return state.params


def iterate_averaged(state: TrainState) -> Parameters:
    """The average of the iterates, for an optimizer with `vpng.transform.iterate_average`."""
    return averaged(state.optimizer)


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
        problem: AbstractProblem,
        params: Parameters,
        data: PyTree | AbstractData,
        optimizer: optax.GradientTransformation,
        *,
        objective: ELBO = ELBO(),
        batch_size: int | None = None,
        record_every: int = 100,
        metrics: Mapping[str, Measure] | None = None,
        readout: Readout = current,
        guard: Guard | None = Guard(),
        mesh: Mesh | Layout | None = None,
        usual_steps: int = USUAL_STEPS,
    ) -> None:
        """Check and compile; the arguments are those of `fit`, and how long a run usually is.

        Raises:
            InputError: if an argument does not fit.
        """
        positive_integer("record_every", record_every)
        positive_integer("usual_steps", usual_steps)
        of_kind("problem", problem, AbstractProblem, "a vpng.Problem")
        of_kind("optimizer", optimizer, optax.GradientTransformation, "an optax transformation")
        of_kind("objective", objective, ELBO, "an objective such as ELBO(10)")
        of_kind("guard", guard, Guard | None, "Guard(), or None for none")
        self._layout = as_layout(mesh)
        self._data = placed(as_data(data), self._layout)
        if problem.num_data != len(self._data):
            raise expected("data", f"problem.num_data = {problem.num_data} data", len(self._data))
        self._batches = Batches(len(self._data), batch_size, self._data.num_blocks)
        self._optimizer = optimizer
        self._about = {
            "problem": problem,
            "objective": objective,
            "batches": self._batches,
            "record_every": record_every,
        }
        self._record_every = record_every
        check_problem(problem, params, self._data.few())
        if isinstance(self._data, InMemory) and isinstance(problem, Problem):
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
            num_steps=usual_steps,
        )
        everywhere = None if self._layout is None else self._layout.everywhere
        self._readout = jax.jit(readout, out_shardings=everywhere)
        self._measure = _compile_metrics(metrics or {}, state, readout, self._layout)
        self._steps = self._steps_on(self._data)
        self._ended: Bare | Watched | None = None

    def on(
        self, data: PyTree | AbstractData, *, metrics: Mapping[str, Measure] | None = None
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
        if metrics is not None:
            _check_names(metrics)
            other._measure = lambda state: _floats(_evaluated(metrics, state, self._readout))
        other._steps = other._steps_on(other._data)
        return other

    def _steps_on(self, data: AbstractData) -> TrainingSteps:
        return TrainingSteps(self._chunks, data, self._about, self._measure)

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
        begun = int(state.step)
        runner = Runner(
            self._steps,
            self._record_every,
            max_seconds=max_seconds,
            stop=stop,
            callbacks=[_of_the_state(callback) for callback in callbacks],
            progress=progress,
            checkpoints=checkpoints,
            resume=resume,
        )
        most = min(num_steps, np.iinfo(np.int32).max - begun)
        outcome = runner.run(self._carried(state), most, begun)
        self._ended = outcome.state
        _warn_of_rejections(outcome)
        state = outcome.state.state
        params = self._readout(state)
        if self._layout is not None:
            params = self._layout.local(params)
        return FitResult(params, state, outcome.history, outcome.stop_reason)

    def _carried(self, state: TrainState) -> Bare | Watched:
        """What a run from `state` carries: all that is known if the last one ended there."""
        ended = self._ended
        if ended is not None and ended.state is state:
            return ended
        return self._chunks.start(self._placed(state))


def _of_the_state(callback: Callback) -> Callable[[Record, Bare | Watched], bool | None]:
    return lambda record, carried: callback(record, carried.state)


def _warn_of_rejections(outcome: Outcome) -> None:
    steps, said = len(outcome.history.step_losses), []
    if outcome.rejected:
        said.append(f"{outcome.rejected} of {steps} steps were not finite and were dropped")
    if outcome.explosions:
        said.append(outcome.explosions)
    if said:
        reason = outcome.stop_reason
        end = f". Stopped: {reason.value}." if reason is StopReason.NOT_FINITE else "."
        named = f", first: {outcome.cause}" if outcome.cause else ""
        message = f"vpng: {'; '.join(said)}{named}{end}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def _compile_metrics(
    metrics: Mapping[str, Measure], state: TrainState, readout: Readout, layout: Layout | None
) -> Callable[[TrainState], dict[str, float]]:
    if not metrics:
        return lambda state: {}
    _check_names(metrics)
    measure = compiled(layout, lambda state: _evaluated(metrics, state, readout), state)
    return lambda state: _floats(measure(state))


def _check_names(metrics: Mapping[str, Measure]) -> None:
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
    metrics: Mapping[str, Measure], state: TrainState, readout: Readout
) -> dict[str, Array]:
    # Apart from the keys of the steps, and the same at every record: common random numbers.
    key = jax.random.fold_in(state.rng_key, 2**32 - 1)
    params = readout(state)
    values = {name: metric(params, key) for name, metric in metrics.items()}
    for name, value in values.items():
        if np.ndim(value) != 0:
            raise expected(f"metrics[{name!r}]", "a single number", f"shape {np.shape(value)}")
    return values
