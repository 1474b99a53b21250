"""Steps in compiled chunks: without a look while all is finite, examined one by one after that."""

import time
from collections.abc import Callable
from typing import NamedTuple

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
from vpng.training.step import Step, StepInfo, TrainState, make_bare_step, make_step


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


Program = Callable[
    [TrainState, AbstractData, np.int32], tuple[TrainState, StepInfo, Bool[Array, ""]]
]


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
        careful = make_step(problem, optimizer, objective, batches)
        look = guard is not None
        self._bare = _compile(self.step, length, state, data, layout, look=look)
        self._compile_careful = lambda: _compile(careful, length, state, data, layout, look=False)
        self._careful: Program | None = None

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
        new, info, _ = self._careful(state, data, last)
        wait_for(info.loss)
        jax.block_until_ready(new)
        return Chunk(new, info, spent + time.perf_counter() - began)


def _compile(
    step: Step,
    length: int,
    state: TrainState,
    data: AbstractData,
    layout: Layout | None,
    *,
    look: bool,
) -> Program:
    _, shapes = jax.eval_shape(step, state, data)
    empty = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)

    def chunk(
        state: TrainState, data: AbstractData, last_step: Array
    ) -> tuple[TrainState, StepInfo, Bool[Array, ""]]:
        # One program for every chunk, the last and shorter one too: the number of steps is traced.
        def body(position: Array, carry: tuple[TrainState, StepInfo]) -> tuple:
            state, infos = carry
            state, info = step(state, data)
            state = state if layout is None else layout.pin(state)
            return state, jax.tree.map(lambda all_, one: all_.at[position].set(one), infos, info)

        count = jnp.minimum(length, last_step - state.step)
        new, infos = jax.lax.fori_loop(0, count, body, (state, empty))
        return new, infos, _clean(infos, new, state) if look else jnp.ones((), bool)

    def results(layout: Layout, shapes: tuple[TrainState, StepInfo, Array]) -> tuple:
        return layout.state_shardings(shapes[0]), layout.everywhere, layout.everywhere

    return compiled(layout, chunk, state, data, np.int32(0), results=results)


def _clean(infos: StepInfo, new: TrainState, old: TrainState) -> Bool[Array, ""]:
    return finite_throughout(infos.loss, infos.rejected, new.params, new.optimizer, old.optimizer)
