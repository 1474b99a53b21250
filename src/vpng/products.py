"""Products of matrices of a few rows and columns, of which the steps of small models are full."""

import jax.numpy as jnp
from jaxtyping import Array, Float

_FEW = 16
"""Terms of every sum, and"""
_SMALL = 2**14
"""multiplications in all, up to which sums take less time than the call of a library."""


def product(left: Float[Array, "n k"], right: Float[Array, "k m"]) -> Float[Array, "n m"]:
    """`left @ right`; what is small is summed, which the compiler fuses with what is around it."""
    if left.shape[1] > _FEW or left.size * right.shape[1] > _SMALL:
        return left @ right
    return jnp.sum(left[:, :, None] * right, axis=1)
