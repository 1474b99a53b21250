"""A distribution without the wrappers that NumPyro puts around it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Bool, PyTree
from numpyro.distributions.flows import (
    BlockNeuralAutoregressiveTransform,
    InverseAutoregressiveTransform,
)

from vpng.numpyro_names import mask_of

FLOWS = (InverseAutoregressiveTransform, BlockNeuralAutoregressiveTransform)
"""Transforms whose network is a function with its arrays hidden inside."""


def unwrapped(distribution: dist.Distribution) -> dist.Distribution:
    """The family inside what only adds dimensions or hides values; transforms stay."""
    while isinstance(
        distribution, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution
    ):
        distribution = distribution.base_dist
    return distribution


class Core(NamedTuple):
    """The distribution inside, the value on its own scale, and the mask.

    Attributes:
        distribution: a plain family.
        value: as that family sees it, transforms undone.
        mask: None, or what broadcasts against the batch of the value as that family sees it.
    """

    distribution: dist.Distribution
    value: Array
    mask: Bool[Array, "..."] | None


def core_of(distribution: dist.Distribution, value: Array) -> Core | None:
    """What is inside; None behind a transform that may depend on parameters or loses something."""
    mask = None
    while True:
        if isinstance(distribution, dist.FoldedDistribution):
            return None
        if isinstance(distribution, dist.MaskedDistribution):
            own = mask_of(distribution)
            mask = own if mask is None else mask & own
        elif isinstance(distribution, dist.Independent) and mask is not None:
            mask = mask.reshape(mask.shape + (1,) * distribution.reinterpreted_batch_ndims)
        elif isinstance(distribution, dist.TransformedDistribution):
            if has_arrays(distribution.transforms):
                return None
            for transform in reversed(distribution.transforms):
                value = jnp.asarray(transform.inv(value))
        elif isinstance(distribution, dist.GaussianRandomWalk):
            return _moves(distribution, value, mask)
        elif not isinstance(distribution, dist.Independent | dist.ExpandedDistribution):
            return Core(distribution, value, mask)
        distribution = distribution.base_dist


def _moves(distribution: Any, value: Array, mask: Array | None) -> Core:
    """A random walk as what it is: every step is Normal about the one before."""
    before = jnp.concatenate([jnp.zeros_like(value[..., :1]), value[..., :-1]], axis=-1)
    scale = jnp.broadcast_to(distribution.scale[..., None], value.shape)
    moves = dist.Normal(before, scale, validate_args=False)
    return Core(moves, value, None if mask is None else mask[..., None])


def has_arrays(transform: PyTree) -> bool:
    """Whether a transform holds arrays, which may depend on parameters; plain numbers do not.

    The network of a flow is a function, and its arrays are hidden inside, as are those of a
    transform that cannot be flattened.
    """
    nodes = parts_of(transform)
    return nodes is None or any(isinstance(node, (jax.Array, *FLOWS)) for node in nodes)


def parts_of(transform: PyTree) -> list | None:
    """The leaves of a transform, flows whole; None if it cannot be flattened.

    A user's transform need not have leaves, and those of TensorFlow Probability raise when JAX
    asks for them.
    """
    try:
        return jax.tree.leaves(transform, is_leaf=lambda node: isinstance(node, FLOWS))
    except (NotImplementedError, TypeError):
        return None
