"""Whether the last step is taken.

The loss is known at both ends of the step with the same random numbers. The step is taken unless
the loss rose by more than noise explains, or fell by more than its slope can.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float


class Promise(NamedTuple):
    """What the quadratic model says of a step d before it is tried.

    Attributes:
        gain: by which the loss should fall, -g.d - d.F d / 2.
        square: d.F d.
    """

    gain: Float[Array, ""]
    square: Float[Array, ""]

    @classmethod
    def none(cls, dtype: DTypeLike) -> "Promise":
        """Before the first step."""
        return cls(jnp.zeros((), dtype), jnp.zeros((), dtype))


class Acceptance(eqx.Module):
    """The test of a step.

    Attributes:
        free_nats: rise of the loss, over all data, that is never held against a step.
        standard_errors: rise that noise explains, in standard errors of the gain.
        most_gain: multiple of the promised gain that a loss can fall by.
        most_nats: fall of the loss, over all data, that is always believed.
        resolution: of a loss, relative to its size.
    """

    free_nats: float = 0.1
    standard_errors: float = 2.0
    most_gain: float = 30.0
    most_nats: float = 1.0
    resolution: float = 1e-6

    def accepts(
        self,
        promised: Float[Array, ""],
        before: Float[Array, " K"],
        after: Float[Array, " K"],
        num_data: int | float,
    ) -> Bool[Array, ""]:
        """Whether losses of K particles, per datum, speak for the step.

        Args:
            promised: the gain of the quadratic model.
            before: losses where the step began.
            after: losses where it ended.
            num_data: of the problem.
        """
        gain = before - after
        # A gain that varies more than the loss did before is no noise either, but the step's doing.
        spread = jnp.minimum(jnp.std(gain, ddof=1), jnp.std(before, ddof=1))
        error = spread / jnp.sqrt(gain.size)
        rounding = self.resolution * jnp.abs(jnp.mean(before))
        # A noise larger than the promised gain is no excuse: heavy tails look like that.
        allowed = jnp.maximum(
            self.standard_errors * jnp.minimum(error, promised),
            self.free_nats / num_data + rounding,
        )
        # No loss falls much faster than its slope: more than that is a density that broke down.
        possible = self.most_gain * promised + self.most_nats / num_data + rounding
        return (jnp.mean(gain) > -allowed) & (jnp.mean(gain) < possible)
