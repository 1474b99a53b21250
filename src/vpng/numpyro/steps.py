"""The steps of `SVI.run` for the runner, a compiled chunk at a time."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpyro.infer.svi import SVIState

from vpng.distributed.layout import Layout, compiled
from vpng.numpyro.rules import AbstractRule
from vpng.numpyro.source import AbstractSource
from vpng.run.chunk import Chunk, capacity_for, many_steps
from vpng.run.history import History, Record
from vpng.run.identity import RunIdentity
from vpng.run.runner import AbstractSteps
from vpng.runtime.interrupts import wait_for
from vpng.runtime.programs import CompiledProgram

LONGEST = 512
"""Most steps of a chunk whose length nothing else decides: runs of any length share a program."""


class StepInfo(NamedTuple):
    """What one step reports.

    Attributes:
        loss: as NumPyro has it, summed over the data.
        exploded: whether the run went back to a good point.
    """

    loss: Float[Array, ""]
    exploded: Bool[Array, ""]


PureStep = Callable[[SVIState, PyTree], tuple[SVIState, StepInfo]]


class Carried(NamedTuple):
    """What a run carries from chunk to chunk.

    Attributes:
        state: after the last step.
        good: the last state at a chunk's begin whose loss was finite.
        done: steps before it.
    """

    state: SVIState
    good: SVIState
    done: int = 0


class StepProgram(NamedTuple):
    """Compiled steps.

    Attributes:
        step: one of them, as it was traced.
        run: state, inputs, number of steps -> state, infos.
    """

    step: PureStep
    run: CompiledProgram

    @classmethod
    def of(
        cls,
        step: PureStep,
        state: SVIState,
        source: AbstractSource,
        layout: Layout | None,
        length: int,
        num_steps: int,
    ) -> "StepProgram":
        """Compile, or find what was compiled before.

        Args:
            step: traced already.
            state: before the first one.
            source: of the arguments of model and guide.
            layout: what lives where; None on one device.
            length: most steps of a chunk.
            num_steps: of the whole run, as far as it is known.
        """
        inputs = source.inputs(0, 1)
        several = many_steps(step, capacity_of(length), state, inputs, source.one_of)

        def steps_of_svi(
            state: SVIState, inputs: PyTree, length: Int[Array, ""]
        ) -> tuple[SVIState, StepInfo]:
            return several(state, inputs, length)

        program = compiled(
            layout,
            steps_of_svi,
            state,
            inputs,
            np.int32(0),
            results=lambda layout, shapes: (layout.state_shardings(shapes[0]), layout.everywhere),
            num_steps=num_steps,
        )
        return cls(step, program)


class SVISteps(AbstractSteps[Carried]):
    """The steps of one run."""

    def __init__(
        self,
        program: StepProgram,
        rule: AbstractRule,
        layout: Layout | None,
        source: AbstractSource,
    ) -> None:
        """Put together.

        Args:
            program: of the steps.
            rule: of the steps.
            layout: what lives where; None on one device.
            source: of the arguments of model and guide.
        """
        self._step, self._program, self._rule = program.step, program.run, rule
        self._layout, self._source = layout, source

    def advance(self, state: Carried, length: int) -> tuple[Carried, Chunk]:
        inputs = self._source.inputs(state.done, length)
        began = time.perf_counter()
        new, info = self._program(state.state, inputs, np.int32(length))
        wait_for(info.loss)
        jax.block_until_ready(new)
        seconds = time.perf_counter() - began
        losses, exploded = (np.asarray(leaf)[:length] for leaf in info)
        good = state.state if np.isfinite(losses[0]) else state.good
        rejected = ~np.isfinite(losses) | exploded
        chunk = Chunk(losses, rejected, exploded, "", seconds)
        return Carried(new, good, state.done + length), chunk

    def is_stuck(self, state: Carried, record: Record, history: History, *, at_end: bool) -> bool:
        return self._rule.is_stuck(state.state.optim_state, history)

    def last_good(self, state: Carried) -> Carried:
        return state if self._rule.keeps_good_points else state._replace(state=state.good)

    def identity(self, state: Carried) -> RunIdentity:
        first = self._source.first()
        about = {"arguments": self._source.called(first)}
        return RunIdentity.of(state.state, about, self._step, state.state, first)

    def to_save(self, state: Carried) -> SVIState:
        return state.state if self._layout is None else self._layout.gathered(state.state)

    def from_saved(self, saved: SVIState, step: int) -> Carried:
        state = saved if self._layout is None else self._layout.put_state(saved)
        return Carried(state, state, step)


def capacity_of(length: int) -> int:
    """Most steps of a program for chunks of `length`."""
    return capacity_for(max(length, LONGEST))


def with_strong_types(state: SVIState) -> SVIState:
    """The state with types that the first step does not change."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), state)


def mean_losses(history: History) -> str:
    """What NumPyro's progress bar shows."""
    last, done = history.losses[-1], history.records[-1].iteration
    return (
        f"init loss: {history.losses[0][0]:.4f}, "
        f"avg. loss [{done - len(last) + 1}-{done}]: {np.mean(last):.4f}"
    )
