"""Pytrees of arrays as if they were vectors."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree


def where(condition: Bool[Array, ""], chosen: PyTree, other: PyTree) -> PyTree:
    """`chosen` if the condition holds, else `other`, leaf by leaf."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), chosen, other)


def zeros_like(tree: PyTree) -> PyTree:
    """A tree of zeros."""
    return jax.tree.map(jnp.zeros_like, tree)


def inner(left: PyTree, right: PyTree) -> Float[Array, ""]:
    """The inner product of two trees."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), left, right)
    return jax.tree.reduce(jnp.add, products, jnp.zeros(()))


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no entry is NaN or infinite; a sum that overflows counts as infinite."""
    return jnp.isfinite(sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), jnp.zeros(())))


def size(tree: PyTree) -> int:
    """The number of all entries."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def is_traced(value: Any) -> bool:
    """Whether `value` is known only while JAX traces."""
    return isinstance(value, Tracer)


def is_key(value: Any) -> bool:
    """Whether `value` is an array of random keys of JAX's own type."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def is_floating(leaf: Any) -> bool:
    """Whether `leaf` can be not finite at all."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def path_name(path: tuple[Any, ...]) -> str:
    """A leaf's path as one would write it in Python."""
    return jax.tree_util.keystr(path).lstrip(".")
