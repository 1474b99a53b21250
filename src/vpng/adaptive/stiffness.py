"""A bound on how far weights of networks move, where the metric says nothing about them."""

from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from vpng.problem import Parameters


class Stiffness(eqx.Module):
    """A metric of weights of networks, in their own units.

    A few draws of the latents see few directions among many weights, and a saturated unit is seen
    by none. In what the metric does not see the damping, relative to the metric as it is, lets
    weights run off to where the network overflows. Weights are of order one by construction, so
    that here, unlike anywhere else, a step has a natural unit.

    Attributes:
        weights: names of the parameters that are weights of networks.
        per_weight: the metric of one, per datum.
    """

    weights: frozenset[str] = eqx.field(default=frozenset(), static=True)
    per_weight: float = eqx.field(default=0.0, static=True)

    def diagonal(self, parameters: Parameters) -> Float[Array, " P"]:
        """Of the matrix in the order of the flat parameters."""

        def of(named: PyTree) -> PyTree:
            if not isinstance(named, Mapping):
                return jax.tree.map(jnp.zeros_like, named)
            fill = lambda name: self.per_weight if name in self.weights else 0.0
            return {
                name: jax.tree.map(lambda leaf, name=name: jnp.full_like(leaf, fill(name)), tree)
                for name, tree in named.items()
            }

        return ravel_pytree(Parameters(*map(of, parameters)))[0]

    def of_all(self, parameters: Parameters) -> float:
        """Of every parameter alike: nothing, unless they all are weights."""
        if not self.weights:
            return 0.0
        names = {name for part in parameters for name in part}
        return self.per_weight if names <= self.weights else 0.0
