"""Moving averages that what is not finite does not enter."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree


def mixed(
    old: PyTree,
    new: PyTree,
    weight: Float[Array, "..."] | float,
    usable: Bool[Array, "..."] | bool = True,
) -> tuple[PyTree, Bool[Array, ""]]:
    """(1 - weight) old + weight new, and whether all of `new` is finite; if it is not, `old`.

    Args:
        old: the average so far.
        new: a tree like it.
        weight: of the new values, from 0 to 1.
        usable: where they may enter.
    """
    finite = jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(new)]).all()
    enters = usable & finite
    mix = lambda old, new: jnp.where(enters, (1 - weight) * old + weight * new, old)
    return jax.tree.map(mix, old, new), finite


def mixed_if_any(
    old: Float[Array, "..."], new: Callable[[], Float[Array, "..."]], weight: Float[Array, ""]
) -> tuple[Float[Array, "..."], Bool[Array, ""]]:
    """`mixed`, but a new value of no weight is not computed and counts as finite."""
    fresh = lambda: mixed(old, new().astype(old.dtype), weight)
    return jax.lax.cond(weight > 0, fresh, lambda: (old, jnp.ones((), bool)))
