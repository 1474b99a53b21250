"""How much of a direction is signal, and what its noise costs.

The gradients of two halves of the particles tell: with g their mean and d half their difference,
g.F^-1 g has the signal and the noise, d.F^-1 d the noise alone. On a noisy quadratic the best step
is the share alpha = (g.F^-1 g - d.F^-1 d) / g.F^-1 g of the direction.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from vpng.adaptive.gradient_products import GradientProducts
from vpng.numerics.moving_average import mixed


class Signal(NamedTuple):
    """Running means, for every block of the metric.

    Attributes:
        agreement: 2 g_a.F^-1 g_b / (g_a.F^-1 g_a + g_b.F^-1 g_b) of the two halves.
        spread: its square.
        noise: the power d.F^-1 d of the gradient's noise, in nats.
        memory: number of steps in these means.
    """

    agreement: Float[Array, " blocks"]
    spread: Float[Array, " blocks"]
    noise: Float[Array, " blocks"]
    memory: Float[Array, " blocks"]

    @classmethod
    def unknown(cls, num_blocks: int, dtype: DTypeLike) -> "Signal":
        """Before the first step: all is signal, and any noise is possible."""
        ones = jnp.ones(num_blocks, dtype)
        return cls(ones, ones, jnp.full(num_blocks, jnp.finfo(dtype).max, dtype), ones)

    @property
    def noise_is_unknown(self) -> Bool[Array, " blocks"]:
        """Whether no step has told it yet."""
        return self.noise == jnp.finfo(self.noise.dtype).max

    @property
    def certain(self) -> Float[Array, " blocks"]:
        """The agreement of the halves that is no chance: less twice its standard error."""
        variance = jnp.maximum(self.spread - self.agreement**2, 0.0)
        certain = self.agreement - jnp.sqrt(2.0 * variance / self.memory)
        return jnp.clip(certain, 0.0, 1.0)


class SignalAndNoise(eqx.Module):
    """The rule that tells them apart.

    Attributes:
        shortest_memory: least number of steps in the means.
        free_steps: number of steps after which shares begin to fall with their number.
        noisy_steps: number of steps after which noise may cost half as much as at first.
        usual_noise: a step whose noise has more than this multiple of the usual power is shortened.
    """

    shortest_memory: float = 3.0
    free_steps: float = 50.0
    noisy_steps: float = 50.0
    usual_noise: float = 4.0

    def share(
        self, signal: Signal, step: Int[Array, ""], tolerated: float
    ) -> Float[Array, " blocks"]:
        """The part of the direction that is signal, never less than a mean over the steps asks.

        The agreement c of the halves is 0 on average if there is noise alone, in any number of
        dimensions; twice its standard error is subtracted: what may be chance does not count. The
        mean of the halves has half their noise, so that 2 c / (1 + c) of it is signal. Steps of a
        share a of a direction with a noise of V nats end a / (2 - a) V / 2 nats above the optimum:
        shares for which that is nothing to speak of are free, however little signal there is.

        Steps that are too long make signal of their own, which brings the next one back. So that
        the iterates settle in any case, a share falls as 1 / t in the end, unless nearly all is
        signal.

        Args:
            signal: what is known.
            step: number of steps done.
            tolerated: nats that noise may cost at first.
        """
        certain = signal.certain
        allowed = tolerated / (1.0 + (step / self.noisy_steps) ** 2)
        least = jnp.maximum(
            1.0 / (1.0 + signal.memory), 4.0 * allowed / (signal.noise + 2.0 * allowed)
        )
        share = jnp.clip(2.0 * certain / (1.0 + certain), least, 1.0)
        settling = self.free_steps / (self.free_steps + step)
        return jnp.minimum(share, jnp.maximum(certain**2, settling))

    def updated(
        self,
        signal: Signal,
        products: GradientProducts,
        step: Int[Array, ""],
        tolerated: float,
        num_data: int | float,
        usable: Bool[Array, ""],
    ) -> Signal:
        """What is known after one more step; the same if it is not usable."""
        power, noise = products.power, products.noise
        total, nats = power + noise, num_data * noise
        agreement = jnp.where(total > 0, (power - noise) / jnp.where(total > 0, total, 1.0), 0.0)
        known = (signal.agreement, signal.spread, signal.noise)
        new = (agreement, agreement**2, nats)
        (agreement, spread, noise), finite = mixed(known, new, 1.0 / signal.memory, usable)
        enters = usable & finite
        noise = jnp.where(signal.noise_is_unknown & enters, nats, noise)
        told = Signal(agreement, spread, noise, signal.memory)
        # A share of one forgets all, one of 1 / t is a mean over t steps.
        kept = (1.0 - self.share(told, step, tolerated)) * signal.memory + 1.0
        least = jnp.minimum(self.shortest_memory, step + 1.0)
        return told._replace(memory=jnp.maximum(jnp.where(enters, kept, signal.memory), least))

    def calm(
        self, usual: Float[Array, " blocks"], now: Float[Array, " blocks"], tolerated: float
    ) -> Float[Array, " blocks"]:
        """What is left of a step whose noise has more power than usual, both in nats."""
        most = self.usual_noise * (usual + tolerated)
        return jnp.sqrt(jnp.where(now > most, most / jnp.where(now > 0, now, 1.0), 1.0))
