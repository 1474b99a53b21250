"""Steps in compiled chunks: without a look while all is finite, examined one by one after that."""

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool

from vpng.distributed.layout import Layout, compiled
from vpng.interrupts import wait_for
from vpng.objective import ELBO
from vpng.problem import Problem
from vpng.training.data import AbstractData, Batches
from vpng.training.guard import Guard, finite_throughout
from vpng.training.step import StepInfo, TrainState, make_bare_step, make_step
from vpng.training.watched import Watched, watched_step


class Chunk(NamedTuple):
    """The steps of a chunk.

    Attributes:
        state: after them.
        info: what each of them reports.
        seconds: that they took, without compilation.
    """

    state: TrainState
    info: StepInfo
    seconds: float


State = TypeVar("State", TrainState, Watched)
Advance = Callable[[State, AbstractData], tuple[State, StepInfo]]
Program = Callable[[State, AbstractData, np.int32], tuple[State, StepInfo, Bool[Array, ""]]]


class Chunks:
    """Runs chunks of at most `length` steps of one problem, optimizer and shape of data.

    The bare program is compiled at once. The one that examines every step is compiled when the
    first chunk turns out not to be finite; that chunk is done again, and the run stays with it.
    """

    def __init__(
        self,
        problem: Problem,
        optimizer: optax.GradientTransformation,
        objective: ELBO,
        batches: Batches,
        *,
        guard: Guard | None,
        length: int,
        state: TrainState,
        data: AbstractData,
        layout: Layout | None,
    ) -> None:
        self.guard = guard
        self.step = make_bare_step(problem, optimizer, objective, batches)
        careful = watched_step(make_step(problem, optimizer, objective, batches))
        look = guard is not None
        self._bare = _compile(self.step, length, state, data, layout, look=look)
        self._compile_careful = lambda: _compile(
            careful, length, Watched.of(state), data, layout, look=False
        )
        self._careful: Program[Watched] | None = None
        self._watched: Watched | None = None

    def run(self, state: TrainState, data: AbstractData, last_step: int) -> Chunk:
        """The next chunk, up to `last_step`."""
        last = np.int32(last_step)
        spent = 0.0
        if self.guard is None or int(state.rejected) == 0:
            began = time.perf_counter()
            new, info, clean = self._bare(state, data, last)
            wait_for(info.loss)
            jax.block_until_ready(new)
            spent = time.perf_counter() - began
            if self.guard is None or bool(clean):
                return Chunk(new, info, spent)
        if self._careful is None:
            self._careful = self._compile_careful()
        began = time.perf_counter()
        self._watched, info, _ = self._careful(self._known(state), data, last)
        wait_for(info.loss)
        jax.block_until_ready(self._watched)
        return Chunk(self._watched.state, info, spent + time.perf_counter() - began)

    def last_good(self, state: TrainState) -> TrainState:
        """`state` at the last point whose loss and gradient were finite, as far as is known."""
        return self._known(state).at_its_best

    def _known(self, state: TrainState) -> Watched:
        """What the chunk before knows, if `state` is where it ended."""
        if self._watched is not None and self._watched.state is state:
            return self._watched
        return Watched.of(state)


def _compile(
    step: Advance[State],
    length: int,
    state: State,
    data: AbstractData,
    layout: Layout | None,
    *,
    look: bool,
) -> Program[State]:
    _, shapes = jax.eval_shape(step, state, data)
    empty = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)

    def chunk(
        state: State, data: AbstractData, last_step: Array
    ) -> tuple[State, StepInfo, Bool[Array, ""]]:
        # One program for every chunk, the last and shorter one too: the number of steps is traced.
        def body(position: Array, carry: tuple[State, StepInfo]) -> tuple:
            state, infos = carry
            state, info = step(state, data)
            state = state if layout is None else layout.pin(state)
            return state, jax.tree.map(lambda all_, one: all_.at[position].set(one), infos, info)

        count = jnp.minimum(length, last_step - state.step)
        new, infos = jax.lax.fori_loop(0, count, body, (state, empty))
        return new, infos, _clean(infos, new, state) if look else jnp.ones((), bool)

    def results(layout: Layout, shapes: tuple[State, StepInfo, Array]) -> tuple:
        return layout.state_shardings(shapes[0]), layout.everywhere, layout.everywhere

    return compiled(layout, chunk, state, data, np.int32(0), results=results)


def _clean(infos: StepInfo, new: TrainState, old: TrainState) -> Bool[Array, ""]:
    return finite_throughout(infos.loss, infos.rejected, new.params, new.optimizer, old.optimizer)
