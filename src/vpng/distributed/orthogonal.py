"""Orthogonal matrices, of which only half has to travel."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.distributed.symmetric import pack, unpack


def reflections(orthogonal: Float[Array, "n n"]) -> Float[Array, "h w"]:
    """The Householder vectors whose reflections give the matrix, up to the signs of its columns."""
    vectors, scales = jnp.linalg.qr(orthogonal, mode="raw")
    return pack(jnp.triu(vectors, 1) + jnp.diag(scales))


def from_reflections(packed: Float[Array, "h w"], size: int) -> Float[Array, "n n"]:
    """The orthogonal matrix that `reflections` packed, each column with either sign."""
    upper = unpack(packed, size)
    return jax.lax.linalg.householder_product(upper.T, jnp.diagonal(upper))
