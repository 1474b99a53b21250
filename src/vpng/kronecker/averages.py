"""Moving averages of the statistics."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.kronecker.factor_statistics import Statistics
from vpng.numerics.moving_average import mixed


class Averages(NamedTuple):
    """Exponentially weighted sums of statistics.

    Attributes:
        sums: sum_t (1 - decay) decay^(now - t) S_t.
        weight: the sum of the weights, by which the sums are divided: the average has no bias
            towards the zeros it starts from.
    """

    sums: Statistics
    weight: Float[Array, ""]

    @classmethod
    def of(cls, zeros: Statistics) -> "Averages":
        """No statistics yet."""
        return cls(zeros, jnp.zeros((), zeros.dense.dtype))

    @property
    def current(self) -> Statistics:
        """The average; zero before the first statistics."""
        weight = jnp.where(self.weight > 0, self.weight, 1.0)
        return jax.tree.map(lambda leaf: leaf / weight, self.sums)

    def updated(self, new: Statistics, decay: float | None) -> "Averages":
        """The averages with `new` taken in, unless an entry of it is not finite.

        Args:
            new: statistics of this step.
            decay: the weight of what was known; None to forget it.
        """
        kept = 0.0 if decay is None else decay
        found, _ = mixed(self, Averages(new, jnp.ones_like(self.weight)), 1 - kept)
        return found
