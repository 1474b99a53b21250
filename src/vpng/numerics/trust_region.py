"""How far a quadratic model is trusted, said by the damping of its solve."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

AFTER_REJECTION = 5.0
"""By which a damping is multiplied, and a step divided, after a step that was not taken."""


class TrustRegion(eqx.Module):
    """The rule by which a damping follows the quality of the model.

    A step that went as promised lowers the damping, one that went worse raises it. A step that
    could not be taken at all says more, and raises it more.

    Attributes:
        lower: factor after a step that went well.
        worse: factor after a step that went badly.
        rejected: factor after a step that was not taken.
        failed: factor after a solve that gave no direction.
        minimum: lower bound on the damping.
        maximum: upper bound on the damping.
    """

    lower: float
    worse: float
    rejected: float
    failed: float
    minimum: float
    maximum: float

    def after_step(
        self,
        damping: Float[Array, ""],
        *,
        good: Bool[Array, ""],
        bad: Bool[Array, ""] | bool = False,
    ) -> Float[Array, ""]:
        """The damping after a step that was taken."""
        change = jnp.where(bad, self.worse, jnp.where(good, self.lower, 1.0))
        return jnp.clip(damping * change, self.minimum, self.maximum)

    def after_rejection(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        """The damping after a step that was not taken."""
        return jnp.clip(damping * self.rejected, self.minimum, self.maximum)

    def after_failure(self, damping: Float[Array, ""]) -> Float[Array, ""]:
        """The damping after a solve that gave no direction."""
        return jnp.minimum(self.failed * damping, self.maximum)
