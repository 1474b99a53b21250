"""Networks as a pair of parameters and a pure function, and the plain multilayer perceptron."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn.initializers import Initializer
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree

from vpng.checks import positive_integer
from vpng.errors import expected

TRUNCATED_NORMAL = jax.nn.initializers.truncated_normal(stddev=0.1)
"""The paper's initial weights: normal of scale 0.1, cut off at two standard deviations."""

GLOROT = jax.nn.initializers.glorot_uniform()
"""Initial weights that keep the variance of activations and gradients from layer to layer."""


class Network(NamedTuple):
    """A network of any kind, as far as inference needs it.

    Attributes:
        parameters: a pytree of floating arrays.
        apply: `apply(parameters, inputs)`, the data along the first axis of inputs and outputs;
            each datum's output depends on its own input alone.
    """

    parameters: PyTree
    apply: Callable[[PyTree, Array], PyTree]


class AffineLayer(NamedTuple):
    """An affine map x -> x W + b."""

    kernel: Float[Array, "n m"]
    bias: Float[Array, " m"]


def mlp_init(
    rng_key: PRNGKeyArray,
    sizes: Sequence[int],
    initialiser: Initializer = GLOROT,
    *,
    dtype: DTypeLike | None = None,
) -> tuple[AffineLayer, ...]:
    """The layers of a perceptron with the widths `sizes`, input and output included.

    Args:
        rng_key: a key.
        sizes: at least two widths.
        initialiser: draws the kernels; biases start at zero.
        dtype: of the parameters; JAX's default floating type if None.

    Raises:
        InputError: for fewer than two widths or one that is no positive whole number.
    """
    if len(sizes) < 2:
        raise expected("sizes", "at least an input and an output width", list(sizes))
    sizes = [positive_integer(f"sizes[{i}]", size) for i, size in enumerate(sizes)]
    dtype = jnp.result_type(float) if dtype is None else dtype
    keys = jax.random.split(rng_key, len(sizes) - 1)
    return tuple(
        AffineLayer(initialiser(key, shape, dtype), jnp.zeros(shape[1], dtype))
        for key, shape in zip(keys, pairwise(sizes), strict=True)
    )


def mlp_apply(
    layers: Sequence[AffineLayer], inputs: Float[Array, "*batch n"]
) -> Float[Array, "*batch m"]:
    """The perceptron's outputs: rectified linear units between affine layers."""
    *hidden, last = layers
    for layer in hidden:
        inputs = jax.nn.relu(inputs @ layer.kernel + layer.bias)
    return inputs @ last.kernel + last.bias


def mlp(
    rng_key: PRNGKeyArray,
    sizes: Sequence[int],
    initialiser: Initializer = GLOROT,
    *,
    dtype: DTypeLike | None = None,
) -> Network:
    """`mlp_init` and `mlp_apply` as a `Network`."""
    return Network(mlp_init(rng_key, sizes, initialiser, dtype=dtype), mlp_apply)
