"""A run that knows its good points, and goes back to them."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from vpng.not_finite import NotFinite
from vpng.numerics.trees import where
from vpng.problem import Parameters
from vpng.run.explosion import Explosions, ExplosionState, went_back
from vpng.training.data import AbstractData
from vpng.training.guard import after_rejection
from vpng.training.step import PartialStep, StepInfo, TrainState

EXPLOSION = "rise of the loss beyond its noise"


class Anchor(NamedTuple):
    """A point to go back to.

    Attributes:
        params: there.
        optimizer: its state there, with the damping raised since.
    """

    params: Parameters
    optimizer: PyTree

    @classmethod
    def at(cls, state: TrainState) -> "Anchor":
        """Where a run is."""
        return cls(state.params, state.optimizer)

    def after_rejection(self) -> "Anchor":
        """With more damping."""
        return Anchor(self.params, after_rejection(self.optimizer))


class Watched(NamedTuple):
    """A state, and where to go back to if no step is possible from it.

    Attributes:
        state: of the run.
        explosions: the losses seen so far, and the last point before which they had not exploded;
            None if nobody looks.
        good: the last point whose loss and gradient were finite.
        returned: whether the run has gone back to it and not yet left it.
    """

    state: TrainState
    explosions: ExplosionState[Anchor] | None
    good: Anchor
    returned: Bool[Array, ""]

    @property
    def at_its_best(self) -> TrainState:
        """The state at the last good point."""
        return self.state._replace(params=self.good.params, optimizer=self.good.optimizer)

    @property
    def watched(self) -> "Watched":
        """Itself."""
        return self

    @property
    def bare(self) -> "Bare":
        """What a run without rejections carries on."""
        return Bare(self.state, self.explosions)


class Bare(NamedTuple):
    """A run in which everything has been finite so far; see `Watched`."""

    state: TrainState
    explosions: ExplosionState[Anchor] | None

    @property
    def bare(self) -> "Bare":
        """Itself."""
        return self

    @property
    def watched(self) -> Watched:
        """The same, watched from here on."""
        return Watched(self.state, self.explosions, Anchor.at(self.state), jnp.zeros((), bool))

    @classmethod
    def of(cls, state: TrainState, rule: Explosions | None) -> "Bare":
        """Before anything is known about the state."""
        return cls(state, None if rule is None else rule.init(Anchor.at(state)))


def bare_step(
    step: PartialStep, rule: Explosions | None, num_data: int
) -> Callable[[Bare, AbstractData], tuple[Bare, StepInfo]]:
    """`step`, that says whether the loss has exploded and does nothing about it."""

    def advance(bare: Bare, data: AbstractData) -> tuple[Bare, StepInfo]:
        old, seen = bare
        if rule is None or seen is None:
            new, info, _ = step(old, data, 1.0)
            return Bare(new, None), info
        new, info, loss_at = step(old, data, seen.share)
        seen, exploded = rule.look(seen, info.loss, lambda good: loss_at(good.params), num_data)
        seen = rule.kept(seen, Anchor.at(old), ~info.rejected)
        return Bare(new, seen), info._replace(rejected=info.rejected | exploded, exploded=exploded)

    return advance


def watched_step(
    step: PartialStep, rule: Explosions | None, num_data: int
) -> Callable[[Watched, AbstractData], tuple[Watched, StepInfo]]:
    """`step`, that goes back after an explosion, or where nothing is finite twice in a row.

    One loss that is not finite may be the fault of its batch; two are that of the point, which a
    step that was too long has reached. A step from the point gone back to is progress only if one
    more follows: until then it counts among the rejections in a row.
    """

    def advance(watched: Watched, data: AbstractData) -> tuple[Watched, StepInfo]:
        old, seen, good, returned = watched
        new, info, loss_at = step(old, data, 1.0 if seen is None else seen.share)
        bad_point = ~jnp.isfinite(info.loss)
        if info.trouble is not None:
            bad_point |= info.trouble.gradient.any
        good = where(bad_point, good.after_rejection(), Anchor.at(old))
        back = bad_point & (old.rejected_in_a_row > 0)
        params, optimizer = where(back, good, Anchor.at(new))
        in_a_row = jnp.where(
            returned & ~info.rejected, old.rejected_in_a_row, new.rejected_in_a_row
        )
        state = new._replace(params=params, optimizer=optimizer, rejected_in_a_row=in_a_row)
        returned = back | (returned & info.rejected)
        if rule is None or seen is None:
            return Watched(state, None, good, returned), info
        seen, exploded = rule.look(seen, info.loss, lambda best: loss_at(best.params), num_data)
        seen = rule.kept(seen, Anchor.at(old), ~bad_point & ~exploded)
        seen = went_back(exploded, seen, seen.good.after_rejection())
        params, optimizer = where(exploded, seen.good, Anchor(params, optimizer))
        state = state._replace(
            params=params,
            optimizer=optimizer,
            rejected=old.rejected + (info.rejected | exploded),
        )
        good = where(exploded, seen.good, good)
        return Watched(state, seen, good, returned), _with_explosion(info, exploded)

    return advance


def _with_explosion(info: StepInfo, exploded: Bool[Array, ""]) -> StepInfo:
    trouble = info.trouble
    if trouble is not None:
        trouble = trouble._replace(explosion=NotFinite.of([EXPLOSION], [exploded]))
    return info._replace(rejected=info.rejected | exploded, exploded=exploded, trouble=trouble)
