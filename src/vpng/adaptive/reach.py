"""How much of a direction is stepped at most: as the curvature along the last step allows.

On a quadratic with the metric's curvature the whole direction is right; where the loss curves more,
1 / ratio of it is. The ratio is that of 2 (L_before - L_after + g_after . d) and d.F d.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

LEAST_SHARE = 1e-6
"""Of a direction, however many steps were rejected."""

UNKNOWN_RATIO = 100.0
"""For a curvature that is not finite: far more than the metric's."""


class Reach(eqx.Module):
    """The rule for the longest share.

    Attributes:
        growth: most by which it grows in a step.
        shrinkage: most by which it shrinks in a step, and what a rejected step leaves of it.
        wide: nats of noise at the start beyond which the start is far too wide.
        wide_share: the longest from such a start, whose few draws may turn it inside out.
    """

    growth: float = 2.0
    shrinkage: float = 0.25
    wide: float = 1000.0
    wide_share: float = 0.1

    def after_step(
        self, longest: Float[Array, ""], accepted: Bool[Array, ""], ratio: Float[Array, ""]
    ) -> Float[Array, ""]:
        """The longest share after a step along which the curvature had this ratio to the metric."""
        shorter = self.shrinkage * longest
        by_curvature = jnp.clip(1.0 / jnp.maximum(ratio, 1.0), shorter, 1.0)
        grown = jnp.minimum(by_curvature, self.growth * longest)
        return jnp.maximum(jnp.where(accepted, grown, shorter), LEAST_SHARE)

    def at_start(
        self, longest: Float[Array, ""], first_nats: Float[Array, " blocks"]
    ) -> Float[Array, ""]:
        """The longest share, given the noise that is seen first; zero where it is not the first."""
        wide = jnp.any(first_nats > self.wide)
        return jnp.where(wide, jnp.minimum(longest, self.wide_share), longest)


def curvature_ratio(
    square: Float[Array, ""],
    slope: Float[Array, ""],
    before: Float[Array, " K"],
    after: Float[Array, " K"],
) -> Float[Array, ""]:
    """The curvature of the loss along a step d over the metric's; 1 where rounding hides it.

    Args:
        square: d.F d.
        slope: g.d with the gradient where the step ended.
        before: losses where it began.
        after: losses where it ended.
    """
    gain = jnp.mean(before - after)
    curvature = 2.0 * (gain + slope)
    resolution = 30.0 * jnp.finfo(gain.dtype).eps * jnp.mean(jnp.abs(before))
    visible = square > resolution
    ratio = jnp.where(visible, curvature / jnp.where(visible, square, 1.0), 1.0)
    return jnp.where(jnp.isfinite(ratio), ratio, UNKNOWN_RATIO)
