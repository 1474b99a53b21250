"""An average of the iterates beside the optimizer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree

from vpng.checks import finite_scalar, positive_integer
from vpng.errors import expected
from vpng.numerics.optax_types import transformation


class IterateAverageState(NamedTuple):
    """The wrapped optimizer's state, the average, and the number of updates."""

    inner: PyTree
    average: PyTree
    step: Int[Array, ""]


def iterate_average(
    optimizer: optax.GradientTransformation,
    *,
    horizon: float = 12.0,
    max_decay: float = 0.999,
    period: int = 5,
) -> optax.GradientTransformationExtraArgs:
    """Keep an exponential average of the parameters whose memory grows with the run.

    At step t the average forgets with decay min(max_decay, 1 - horizon / (t + horizon - 1)): it
    looks back over a fixed share of the run, so that it helps early and late, and the noise of the
    iterates averages out. The updates themselves do not change; read the average with `averaged`.
    A caller that takes only a share of the updates says so with `share=`.

    Args:
        optimizer: what makes the updates.
        horizon: about the inverse of the share of the run that is averaged.
        max_decay: the longest memory.
        period: steps between two contributions to the average.
    """
    finite_scalar("horizon", horizon, minimum=1.0, strict=True)
    positive_integer("period", period)
    if not 0.0 < max_decay < 1.0:
        raise expected("max_decay", "a number in (0, 1)", max_decay)
    inner = optax.with_extra_args_support(optimizer)

    def init(params: PyTree) -> IterateAverageState:
        return IterateAverageState(inner.init(params), params, jnp.zeros((), jnp.int32))

    def update(
        updates: PyTree,
        state: IterateAverageState,
        params: PyTree = None,
        *,
        share: Float[Array, ""] | float = 1.0,
        **extra_args: Any,
    ) -> tuple[PyTree, IterateAverageState]:
        if params is None:
            raise expected("params", "the current parameters", None)
        updates, inner_state = inner.update(updates, state.inner, params, share=share, **extra_args)
        step = state.step + 1

        def mixed() -> PyTree:
            part = jax.tree.map(lambda update: (share * update).astype(update.dtype), updates)
            moved = optax.apply_updates(params, part)
            keep = jnp.minimum(max_decay, 1.0 - horizon / (step + horizon - 1.0)) ** period
            return jax.tree.map(
                lambda old, new: (keep * old + (1.0 - keep) * new).astype(old.dtype),
                state.average,
                moved,
            )

        average = jax.lax.cond(step % period == 0, mixed, lambda: state.average)
        return updates, IterateAverageState(inner_state, average, step)

    return transformation(init, update)


def averaged(state: PyTree) -> PyTree:
    """The average of the iterates, found anywhere in an optimizer's state.

    Raises:
        InputError: if the state has none.
    """
    found = [
        node
        for node in jax.tree.leaves(
            state, is_leaf=lambda node: isinstance(node, IterateAverageState)
        )
        if isinstance(node, IterateAverageState)
    ]
    if len(found) != 1:
        raise expected("state", "one iterate_average(...) in the optimizer", len(found))
    return found[0].average
