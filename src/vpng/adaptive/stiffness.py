"""A bound on how far weights of networks move, where the metric says nothing about them."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import DictKey, KeyPath
from jaxtyping import Array, Float

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
        fill = lambda path, leaf: jnp.full_like(leaf, self._of(path))
        return ravel_pytree(jax.tree_util.tree_map_with_path(fill, parameters))[0]

    def _of(self, path: KeyPath) -> float:
        # The first key is that of the variational or of the model's parameters.
        keys = [key.key for key in path[1:2] if isinstance(key, DictKey)]
        return self.per_weight if self.weights.issuperset(keys) and keys else 0.0
