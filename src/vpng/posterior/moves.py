"""Draws moved towards the posterior: short Hamiltonian trajectories from where they are.

Each transition leaves the posterior as it is (Duane et al. 1987; Neal 2011). Hundreds of chains
that start at the draws of an approximation and forget where they started tell how far it was off,
in any number of dimensions: importance weights multiply over latents, this does not.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from vpng.posterior.batches import over
from vpng.posterior.frame import AbstractFrame
from vpng.posterior.mean_field import Density

QUARTER = np.pi / 2
"""The time after which a trajectory in a standard normal has forgotten its start."""
ACCEPTED = 0.8
"""Share of proposals to be taken; best for trajectories in many dimensions (Beskos et al. 2013)."""
MOST_LEAPS = 64


class Chains(NamedTuple):
    """Where chains are.

    Attributes:
        at: in the coordinates of a frame.
        step_size: of the integrator.
    """

    at: Float[Array, "C P"]
    step_size: Float[Array, ""]


class Moved(NamedTuple):
    """What some transitions did.

    Attributes:
        chains: after them.
        visited: after each of them.
        heights: log densities there.
        accepted: probability that each was taken.
        gradients: that one chain evaluated.
    """

    chains: Chains
    visited: Float[Array, "T C P"]
    heights: Float[Array, "T C"]
    accepted: Float[Array, "T C"]
    gradients: Float[Array, ""]


def move(
    density: Density,
    frame: AbstractFrame,
    chains: Chains,
    rng_key: PRNGKeyArray,
    adapting: Float[Array, " T"],
) -> Moved:
    """A transition for every entry of `adapting`.

    Args:
        density: log p(x, z).
        frame: coordinates in which the posterior is about standard.
        chains: where to start.
        rng_key: a key.
        adapting: how much the step size learns from each transition; none where it is zero.
    """
    batched = over(density, jax.value_and_grad(lambda u: density(frame(u))))

    def transition(
        carry: tuple[Chains, Array, Array], given: tuple[PRNGKeyArray, Array]
    ) -> tuple[tuple[Chains, Array, Array], tuple[Array, ...]]:
        (at, step_size), height, slope = carry
        key, rate = given
        speed_key, time_key, take_key = jax.random.split(key, 3)
        speed = jax.random.normal(speed_key, at.shape, at.dtype)
        # Trajectories of one length would come back to where they started in some direction.
        time = QUARTER * jax.random.uniform(time_key, minval=0.6, maxval=1.4)
        leaps = jnp.clip(jnp.ceil(time / step_size), 1, MOST_LEAPS).astype(int)

        def leap(_: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            u, v, _, slope = state
            v = v + 0.5 * step_size * slope
            u = u + step_size * v
            height, slope = batched(u)
            return u, v + 0.5 * step_size * slope, height, slope

        u, v, reached, steep = jax.lax.fori_loop(0, leaps, leap, (at, speed, height, slope))
        energy = lambda height, v: height - 0.5 * jnp.sum(v**2, axis=-1)
        gain = energy(reached, v) - energy(height, speed)
        chance = jnp.where(jnp.isfinite(gain), jnp.exp(jnp.minimum(gain, 0.0)), 0.0)
        taken = jax.random.uniform(take_key, chance.shape) < chance
        pick = lambda new, old: jnp.where(taken.reshape(-1, *[1] * (new.ndim - 1)), new, old)
        at, height, slope = pick(u, at), pick(reached, height), pick(steep, slope)
        step_size = step_size * jnp.exp(rate * (jnp.mean(chance) - ACCEPTED))
        return (Chains(at, step_size), height, slope), (at, height, chance, leaps)

    keys = jax.random.split(rng_key, adapting.size)
    start = (chains, *batched(chains.at))
    (chains, _, _), (visited, heights, chances, leaps) = jax.lax.scan(
        transition, start, (keys, adapting)
    )
    return Moved(chains, visited, heights, chances, jnp.sum(leaps) + 1.0)
