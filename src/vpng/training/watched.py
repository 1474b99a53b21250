"""A run that knows the last good point, and goes back to it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from vpng.problem import Parameters
from vpng.training.data import AbstractData
from vpng.training.guard import after_rejection
from vpng.training.step import Step, StepInfo, TrainState


class Anchor(NamedTuple):
    """The last point whose loss and gradient were finite.

    Attributes:
        params: there.
        optimizer: its state there, with the damping raised since.
    """

    params: Parameters
    optimizer: PyTree


class Watched(NamedTuple):
    """A state, and where to go back to if no step is possible from it.

    Attributes:
        state: of the run.
        good: the last good point.
        returned: whether the run has gone back to it and not yet left it.
    """

    state: TrainState
    good: Anchor
    returned: Bool[Array, ""]

    @property
    def step(self) -> Int[Array, ""]:
        """Steps done."""
        return self.state.step

    @property
    def at_its_best(self) -> TrainState:
        """The state at the last good point."""
        return self.state._replace(params=self.good.params, optimizer=self.good.optimizer)

    @classmethod
    def of(cls, state: TrainState) -> "Watched":
        """Before anything is known about the state."""
        return cls(state, Anchor(state.params, state.optimizer), jnp.zeros((), bool))


def watched_step(
    step: Step,
) -> Callable[[Watched, AbstractData], tuple[Watched, StepInfo]]:
    """`step`, that goes back after a second loss or gradient in a row that is not finite.

    One such loss may be the fault of its batch; two are that of the point, which a step that was
    too long has reached. A step from the point gone back to is progress only if one more follows:
    until then it counts among the rejections in a row.
    """

    def advance(watched: Watched, data: AbstractData) -> tuple[Watched, StepInfo]:
        old, good, returned = watched
        new, info = step(old, data)
        bad_point = ~jnp.isfinite(info.loss)
        if info.trouble is not None:
            bad_point |= info.trouble.gradient.any
        raised = Anchor(good.params, after_rejection(good.optimizer))
        good = _where(bad_point, raised, Anchor(old.params, old.optimizer))
        back = bad_point & (old.rejected_in_a_row > 0)
        params, optimizer = _where(back, good, Anchor(new.params, new.optimizer))
        in_a_row = jnp.where(
            returned & ~info.rejected, old.rejected_in_a_row, new.rejected_in_a_row
        )
        state = new._replace(params=params, optimizer=optimizer, rejected_in_a_row=in_a_row)
        return Watched(state, good, back | (returned & info.rejected)), info

    return advance


def _where(condition: Bool[Array, ""], chosen: PyTree, other: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, other)
