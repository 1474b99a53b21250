"""Moments between the activations, or cotangents, of two layers with different examples."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.errors import InputError

Named = tuple[str, Float[Array, "... n"]]


def coupled(left: Named, right: Named, reduce: Callable[..., Array]) -> Float[Array, "n m"]:
    """The mean or sum over examples of l r^T.

    A layer before the latents is evaluated once per datum, one behind them for every particle of
    it. Axes of examples that only one of the two has are reduced first, so that each example meets
    its own.

    Args:
        left: name and vectors [..., n] of a layer.
        right: of the next, [..., m].
        reduce: `jnp.mean` or `jnp.sum`.
    """
    (first, second), shared = _aligned(left, right, reduce)
    total = first.T @ second
    return total / shared if reduce is jnp.mean else total


def _aligned(left: Named, right: Named, reduce: Callable) -> tuple[tuple[Array, Array], int]:
    sizes = [_sizes(*named) for named in (left, right)]
    if not (set(sizes[0]) <= set(sizes[1]) or set(sizes[1]) <= set(sizes[0])):
        raise InputError(
            f"structure: expected neighbours that share their examples, got {left[0]} with "
            f"examples of shape {sizes[0]} and {right[0]} with {sizes[1]}; use Kronecker."
        )
    shared = [size for size in sizes[0] if size in sizes[1]]
    flat = []
    for (_, vectors), own in zip((left, right), sizes, strict=True):
        vectors = vectors.reshape(*own, vectors.shape[-1])
        order = [own.index(size) for size in shared]
        extra = [axis for axis in range(len(own)) if axis not in order]
        moved = vectors.transpose(*extra, *order, len(own))
        reduced = reduce(moved, axis=tuple(range(len(extra))))
        flat.append(reduced.reshape(-1, vectors.shape[-1]))
    return tuple(flat), flat[0].shape[0]


def _sizes(name: str, vectors: Float[Array, "... n"]) -> tuple[int, ...]:
    """The sizes of the axes of examples, which must tell them apart."""
    sizes = tuple(size for size in vectors.shape[:-1] if size > 1)
    if len(set(sizes)) < len(sizes):
        raise InputError(
            f"structure: expected axes of examples of different lengths, got {sizes} at {name}; "
            "choose a number of particles for the metric that differs from the batch size."
        )
    return sizes
