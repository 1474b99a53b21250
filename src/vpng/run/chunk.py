"""Many steps in one compiled program."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

State = TypeVar("State")
Inputs = TypeVar("Inputs")
Info = TypeVar("Info", bound=PyTree)

Step = Callable[[State, Inputs], tuple[State, Info]]
"""A step is pure: what it is given is all it knows, and what it returns all that it does."""

SHORTEST = 128


class Chunk(NamedTuple):
    """What is known of the steps of a chunk.

    Attributes:
        losses: of every step.
        rejected: whether the step was dropped.
        exploded: whether the run then went back to a good point.
        cause: what was not finite in the first of the dropped steps; empty if that is not known.
        seconds: that the steps took, without compilation.
    """

    losses: np.ndarray
    rejected: np.ndarray
    exploded: np.ndarray
    cause: str
    seconds: float


def capacity_for(length: int) -> int:
    """Most steps of a program for chunks of `length`: few programs, for any length."""
    return max(SHORTEST, 1 << (length - 1).bit_length())


def many_steps(
    step: Step[State, Inputs, Info],
    capacity: int,
    state: State,
    inputs: Inputs,
    one_of: Callable[[Inputs, Int[Array, ""]], Inputs] = lambda inputs, _: inputs,
) -> Callable[[State, Inputs, Int[Array, ""]], tuple[State, Info]]:
    """The function (state, inputs, length) -> (state, infos) of `length` steps, which is traced.

    Args:
        step: one step.
        capacity: most steps; the infos have so many rows, those after `length` are zero.
        state: for the shapes.
        inputs: for the shapes.
        one_of: what of the inputs a step is given, by its position; all of them by default.
    """
    beginning: Any = np.int32(0)  # JAX would compile a program for a number of its own.
    # Traced once, however often it is looked at from here on.
    first = one_of(inputs, beginning)
    step = eqx.filter_closure_convert(step, state, first)
    _, shapes = jax.eval_shape(step, state, first)
    empty = lambda: jax.tree.map(
        lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), shapes
    )

    def chunk(state: State, inputs: Inputs, length: Int[Array, ""]) -> tuple[State, Info]:
        def body(position: Array, carry: tuple[State, Info]) -> tuple[State, Info]:
            state, infos = carry
            state, info = step(state, one_of(inputs, position))
            return state, jax.tree.map(lambda all_, one: all_.at[position].set(one), infos, info)

        return jax.lax.fori_loop(0, length, body, (state, empty()))

    return chunk
