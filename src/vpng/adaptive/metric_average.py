"""How much the metric of one step counts in the average over steps, and when it is evaluated."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from vpng.adaptive.geometry import Block
from vpng.adaptive.signal import Signal


class MetricAverage(eqx.Module):
    """The rule for the weight.

    Attributes:
        shortest: least weight of a metric that is evaluated.
        longest: most weight, as long as the point hardly moves.
        far: length of a step, in nats of the metric, after which the metric before it counts for
            half.
        period: steps between evaluations of the metric, once noise is most of the gradient.
    """

    shortest: float = 0.02
    longest: float = 0.3
    far: float = 10.0
    period: int = eqx.field(default=4, static=True)

    def weight(
        self,
        count: Int[Array, ""],
        step: Int[Array, ""],
        share: Float[Array, " blocks"],
        signal: Signal,
        moved: Float[Array, ""],
        accepted: Bool[Array, ""],
    ) -> Float[Array, ""]:
        """The weight of this step's metric; zero if it is not evaluated.

        Args:
            count: number of metrics in the average.
            step: number of steps done.
            share: of the direction that is stepped.
            signal: how much of it is signal.
            moved: d.F d of the last step, in nats.
            accepted: whether that step was taken.
        """
        weight = jnp.clip(0.5 * jnp.max(share), self.shortest, self.longest)
        weight = jnp.maximum(weight, 1.0 / (count + 1.0))
        # A metric of another place is forgotten, as far as it was signal that led here.
        led = 0.9 * signal.certain[Block.LOCATION]
        weight = jnp.maximum(weight, led * moved / (moved + self.far))
        due = (jnp.max(share) > 0.5) | (step % self.period == 0)
        return jnp.where(accepted & (due | (count == 0)), weight, 0.0)
