"""Steps in compiled chunks: without a look while all is finite, examined one by one after that."""

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Int

from vpng.distributed.layout import Layout, compiled
from vpng.objective import ELBO
from vpng.problem import AbstractProblem
from vpng.run.chunk import Chunk, Step, capacity_for, many_steps
from vpng.run.history import History, Record
from vpng.run.identity import RunIdentity
from vpng.run.runner import AbstractSteps
from vpng.runtime.interrupts import wait_for
from vpng.training.data import AbstractData, Batches
from vpng.training.guard import Guard, finite_throughout
from vpng.training.placed import Placed
from vpng.training.step import StepInfo, TrainState, make_bare_step, make_examined_step
from vpng.training.watched import Bare, Watched, bare_step, watched_step

State = TypeVar("State", Bare, Watched)
Program = Callable[[State, AbstractData, np.int32], tuple[State, StepInfo, Bool[Array, ""]]]


class Chunks:
    """The programs of one problem, optimizer and shape of data.

    The bare program is compiled at once. The one that examines every step is compiled when it is
    first asked for.
    """

    def __init__(
        self,
        problem: AbstractProblem,
        optimizer: optax.GradientTransformation,
        objective: ELBO,
        batches: Batches,
        *,
        guard: Guard | None,
        length: int,
        state: TrainState,
        data: AbstractData,
        layout: Layout | None,
        num_steps: int,
    ) -> None:
        self.guard, self.layout = guard, layout
        self._rule = None if guard is None else guard.explosions
        parts, size = (problem, optimizer, objective, batches), problem.num_data
        self.step = bare_step(make_bare_step(*parts), self._rule, size)
        examined = watched_step(make_examined_step(*parts), self._rule, size)
        look, start, room = guard is not None, self.start(state), capacity_for(length)
        self.bare = _compile(self.step, room, start, data, layout, num_steps, look=look)
        self._compile_examined = lambda: _compile(
            examined, room, start.watched, data, layout, num_steps, look=False
        )
        self._examined: Program[Watched] | None = None

    @property
    def examined(self) -> Program[Watched]:
        """The program that looks at every step."""
        if self._examined is None:
            self._examined = self._compile_examined()
        return self._examined

    def start(self, state: TrainState) -> Bare:
        """What a run carries before anything is known about a state."""
        return Bare.of(state, self._rule)


class TrainingSteps(AbstractSteps[Bare | Watched]):
    """The chunks of one run on its data.

    A chunk that turns out not to be finite, or in which the loss has exploded, is done again by the
    program that examines every step, and the run stays with that one.
    """

    def __init__(
        self,
        chunks: Chunks,
        data: AbstractData,
        about: Mapping[str, object],
        measure: Callable[[TrainState], dict[str, float]],
    ) -> None:
        self._chunks, self._data, self._about, self._measure = chunks, data, about, measure
        self.known_identity: RunIdentity | None = None

    def advance(self, state: Bare | Watched, length: int) -> tuple[Bare | Watched, Chunk]:
        chunks, count, spent = self._chunks, np.int32(length), 0.0
        if chunks.guard is None or int(state.state.rejected) == 0:
            began = time.perf_counter()
            new, info, clean = chunks.bare(state.bare, self._data, count)
            wait_for(info.loss)
            jax.block_until_ready(new)
            spent = time.perf_counter() - began
            if chunks.guard is None or bool(clean):
                return new, _told(info, length, spent)
        examined = chunks.examined
        began = time.perf_counter()
        watched, info, _ = examined(state.watched, self._data, count)
        wait_for(info.loss)
        jax.block_until_ready(watched)
        return watched, _told(info, length, spent + time.perf_counter() - began)

    def is_stuck(
        self, state: Bare | Watched, record: Record, history: History, *, at_end: bool
    ) -> bool:
        guard, count = self._chunks.guard, len(history.losses[-1])
        if guard is None:
            return False
        in_a_row = int(state.state.rejected_in_a_row)
        return (at_end and record.rejected == count) or in_a_row >= guard.max_rejections

    def last_good(self, state: Bare | Watched) -> Bare | Watched:
        return self._chunks.start(state.watched.at_its_best)

    def measure(self, state: Bare | Watched) -> dict[str, float]:
        return self._measure(state.state)

    def identity(self, state: Bare | Watched) -> RunIdentity:
        if self.known_identity is None:
            data = self._data.data if isinstance(self._data, Placed) else self._data
            about = {**self._about, "data": data}
            step = self._chunks.step
            self.known_identity = RunIdentity.of(state.state, about, step, state.bare, self._data)
        return self.known_identity

    def to_save(self, state: Bare | Watched) -> Watched:
        layout = self._chunks.layout
        return state.watched if layout is None else layout.gathered(state.watched)

    def from_saved(self, saved: Watched, step: int) -> Watched:
        layout = self._chunks.layout
        return saved if layout is None else layout.put_state(saved)


def _told(info: StepInfo, length: int, seconds: float) -> Chunk:
    rejected = np.asarray(info.rejected)[:length]
    cause = ""
    if info.trouble is not None and rejected.any():
        cause = info.trouble.words((int(rejected.argmax()),))
    exploded = np.asarray(info.exploded)[:length]
    return Chunk(np.asarray(info.loss)[:length], rejected, exploded, cause, seconds)


def _compile(
    step: Step[State, AbstractData, StepInfo],
    capacity: int,
    state: State,
    data: AbstractData,
    layout: Layout | None,
    num_steps: int,
    *,
    look: bool,
) -> Program[State]:
    def pinned(state: State, data: AbstractData) -> tuple[State, StepInfo]:
        state, info = step(state, data)
        return (state if layout is None else layout.pin(state)), info

    several = many_steps(pinned, capacity, state, data)

    def chunk(
        state: State, data: AbstractData, length: Int[Array, ""]
    ) -> tuple[State, StepInfo, Bool[Array, ""]]:
        new, infos = several(state, data, length)
        if not look:
            return new, infos, jnp.ones((), bool)
        return new, infos, _clean(infos, new.state, state.state)

    def results(layout: Layout, shapes: tuple[State, StepInfo, Array]) -> tuple:
        return layout.state_shardings(shapes[0]), layout.everywhere, layout.everywhere

    return compiled(layout, chunk, state, data, np.int32(0), results=results, num_steps=num_steps)


def _clean(infos: StepInfo, new: TrainState, old: TrainState) -> Bool[Array, ""]:
    return finite_throughout(infos.loss, infos.rejected, new.params, new.optimizer, old.optimizer)
