"""The covariance of the gradient over the particles, added to the metric where noise is all.

A few loud directions then do not slow down the quiet ones.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from vpng.adaptive.geometry import Block, WeightedNoise
from vpng.adaptive.signal import Signal
from vpng.products import product


class NoiseCovariance(eqx.Module):
    """How it is estimated.

    Attributes:
        quiet: nats of noise in one direction at which that direction is stepped half as far.
    """

    quiet: float = 2.0

    def of(
        self,
        gradients: Float[Array, "K n"],
        scores: Float[Array, "K n"],
        coefficient: Float[Array, " blocks"],
        num_data: int | float,
    ) -> Float[Array, "n n"]:
        """The covariance of the mean of K gradients, each less its control variate.

        In units in which `quiet` nats in a direction count as much as the metric itself.
        """
        rest = gradients - coefficient[Block.LOCATION] * scores
        rest = rest - jnp.mean(rest, axis=0)
        count = rest.shape[0]
        weight = num_data / (self.quiet * count * (count - 1))
        return weight * product(rest.T, rest)

    def here(
        self, covariance: Float[Array, "n n"], signal: Signal, accepted: Bool[Array, ""]
    ) -> WeightedNoise:
        """With its weight in the average over steps, and the part of that to be added."""
        # What is signal now was noise of another place: it must not slow down the way.
        part = (1.0 - signal.certain[Block.LOCATION]) ** 3
        rate = jnp.where(accepted, 1.0 / signal.memory[Block.LOCATION], 0.0)
        return WeightedNoise(covariance, rate, part)
