"""The rules that the paper puts on top of every direction."""

from typing import Any

import jax
import optax
from jaxtyping import Array, Bool

from vpng.numerics.optax_types import transformation

RULES = ("adam", "rmsprop")
"""Adam, and RMSProp with decay 0.9."""


def adam_or_rmsprop(rmsprop: Bool[Array, ""] | bool) -> optax.GradientTransformation:
    """One of the two as a traced choice, so that one program holds both."""
    adam, rms = optax.scale_by_adam(), optax.scale_by_rms(decay=0.9)

    def init(params: optax.Params) -> tuple[optax.OptState, optax.OptState]:
        return adam.init(params), rms.init(params)

    def update(
        updates: optax.Updates,
        state: tuple[optax.OptState, optax.OptState],
        params: optax.Params | None = None,
        **extra_args: Any,
    ) -> tuple[optax.Updates, tuple[optax.OptState, optax.OptState]]:
        del extra_args

        def by_adam() -> tuple:
            new, adam_state = adam.update(updates, state[0], params)
            return new, (adam_state, state[1])

        def by_rms() -> tuple:
            new, rms_state = rms.update(updates, state[1], params)
            return new, (state[0], rms_state)

        return jax.lax.cond(rmsprop, by_rms, by_adam)

    return transformation(init, update)
