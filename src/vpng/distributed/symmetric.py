"""Symmetric and triangular matrices, of which only half has to travel."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.distributed.layout import active_layout

SMALLEST_BLOCK = 32
DEPTH = 3


def gram(vectors: Float[Array, "... n"]) -> Float[Array, "n n"]:
    """The sum of v v^T over all leading axes.

    On a mesh those axes are divided, and every product of two vectors is summed over the devices:
    the blocks below the diagonal are mirrored and not computed, which leaves 9/16 of them.
    """
    if active_layout() is None:
        flat = vectors.reshape(-1, vectors.shape[-1])
        return flat.T @ flat
    return _upper(vectors, DEPTH)


def _upper(vectors: Float[Array, "... n"], depth: int) -> Float[Array, "n n"]:
    size = vectors.shape[-1]
    if depth == 0 or size < 2 * SMALLEST_BLOCK:
        return _product(vectors, vectors)
    left, right = vectors[..., : size // 2], vectors[..., size // 2 :]
    between = _product(left, right)
    return jnp.block([[_upper(left, depth - 1), between], [between.T, _upper(right, depth - 1)]])


def _product(left: Float[Array, "... n"], right: Float[Array, "... m"]) -> Float[Array, "n m"]:
    """The sum of l r^T without a reshape, which would take apart axes that are divided."""
    axes = tuple(range(left.ndim - 1))
    return jax.lax.dot_general(left, right, ((axes, axes), ((), ())))


def pack(upper: Float[Array, "n n"]) -> Float[Array, "h w"]:
    """The upper triangle in a rectangle of half the size: the lower rows turned into the gap.

    Row i of an upper triangle starts in column i; row n - 1 - i, turned by half a turn, ends there.
    """
    size = upper.shape[0] + upper.shape[0] % 2
    upper = jnp.pad(jnp.triu(upper), (0, size - upper.shape[0]))
    first, second = upper[: size // 2], upper[size // 2 :][::-1, ::-1]
    return jnp.pad(first, ((0, 0), (1, 0))) + jnp.pad(second, ((0, 0), (0, 1)))


def unpack(packed: Float[Array, "h w"], size: int) -> Float[Array, "n n"]:
    """The upper triangle of `size` rows that `pack` packed, zeros below."""
    row = jnp.arange(packed.shape[0])[:, None]
    column = jnp.arange(packed.shape[1])[None, :]
    first = jnp.where(column > row, packed, 0)[:, 1:]
    second = jnp.where(column <= row, packed, 0)[:, :-1][::-1, ::-1]
    return jnp.concatenate([first, second])[:size, :size]


def mirrored(upper: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric matrix with this upper triangle."""
    return upper + jnp.triu(upper, 1).T
