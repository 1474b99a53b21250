"""Symmetric and triangular matrices, of which only half has to travel."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.distributed.layout import active_layout


def gram(vectors: Float[Array, "... n"], num_data: int | None = None) -> Float[Array, "n n"]:
    """The sum of v v^T over all leading axes.

    On a mesh each device sums over its own data, and only a triangle is added up over the devices.

    Args:
        vectors: one along the last axis.
        num_data: the length of the axis that is divided on a mesh, if there is one.
    """
    layout = active_layout()
    if layout is None:
        flat = vectors.reshape(-1, vectors.shape[-1])
        return flat.T @ flat
    size, axes = vectors.shape[-1], range(vectors.ndim - 1)
    divided = [axis for axis in axes if vectors.shape[axis] == num_data]
    if len(divided) != 1 or vectors.shape[divided[0]] % layout.num_devices:
        return _product(vectors, tuple(axes), ())
    (axis,) = divided
    shape = list(vectors.shape)
    shape[axis : axis + 1] = [layout.num_devices, shape[axis] // layout.num_devices]
    own = tuple(other for other in range(len(shape) - 1) if other != axis)
    parts = _product(vectors.reshape(shape), own, (axis,))
    return mirrored(unpack(jnp.sum(jax.vmap(pack)(parts), axis=0), size))


def _product(vectors: Array, summed: tuple[int, ...], kept: tuple[int, ...]) -> Array:
    return jax.lax.dot_general(vectors, vectors, ((summed, summed), (kept, kept)))


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
