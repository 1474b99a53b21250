"""The score of q as a control variate of the gradient.

The score has mean zero, and for an approximation that can match the posterior it cancels the
gradient's noise entirely. How much of it is subtracted is the regression of the gradient on it, in
the metric, over past steps: one known before this step's draws, or the step would be biased.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from vpng.adaptive.gradient_products import GradientProducts
from vpng.numerics.moving_average import mixed

SHORTEST = 0.1
"""Least weight of one step in the regression."""


class ControlCoefficient(NamedTuple):
    """Running means of g.F^-1 h and h.F^-1 h, for the control variate h and every block."""

    product: Float[Array, " blocks"]
    square: Float[Array, " blocks"]

    @classmethod
    def none(cls, num_blocks: int, dtype: DTypeLike) -> "ControlCoefficient":
        """Before the first step."""
        zeros = jnp.zeros(num_blocks, dtype)
        return cls(zeros, zeros)

    @property
    def coefficient(self) -> Float[Array, " blocks"]:
        """How much of h to subtract from g."""
        some = self.square > 0
        return jnp.where(
            some, jnp.clip(self.product / jnp.where(some, self.square, 1.0), 0.0, 1.0), 0.0
        )

    def updated(
        self, products: GradientProducts, step: Int[Array, ""], usable: Bool[Array, ""]
    ) -> "ControlCoefficient":
        """With the products of one more step; the same if it has no scores or is not usable.

        Its gradients are without the control variate: what was subtracted of it is added again.
        """
        if not products.has_scores:
            return self
        square = products.of_scores
        product = products.with_scores + self.coefficient * square
        rate = jnp.maximum(1.0 / (step + 1.0), SHORTEST)
        found, _ = mixed(self, ControlCoefficient(product, square), rate, usable)
        return found
