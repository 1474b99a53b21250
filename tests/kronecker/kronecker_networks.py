"""Small networks and operators that the tests of `vpng.kronecker` share."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

from vpng.fisher import FisherOperator
from vpng.fisher.operator import ByDatum
from vpng.kronecker import statistics
from vpng.kronecker.structure import by_path


def normal(shape, *, seed):
    """Gaussian draws in the default precision of the moment."""
    return jax.device_put(np.random.default_rng(seed).normal(size=shape))


def perceptron(seed, sizes, *, bias=True):
    """Layers {"w": [in, out], "b": [out]} with biases away from zero."""
    generator = np.random.default_rng(seed)
    layers = []
    for into, out in pairwise(sizes):
        layer = {"w": jax.device_put(generator.normal(size=(into, out)) / np.sqrt(into))}
        if bias:
            layer["b"] = jax.device_put(0.3 * generator.normal(size=out))
        layers.append(layer)
    return layers


def apply(layers, inputs, activation=jnp.tanh):
    for position, layer in enumerate(layers):
        inputs = inputs @ layer["w"] + layer.get("b", 0.0)
        if position < len(layers) - 1:
            inputs = activation(inputs)
    return inputs


def network_operator(function, parameters, inputs):
    """The Fisher of N(function(parameters, x), I) per datum: exact rows [B, outputs]."""
    size = inputs.shape[0]

    def rows(parameters):
        return function(parameters, inputs).reshape(size, -1) / jnp.sqrt(size)

    def datum(parameters, one):
        return function(parameters, one[None]).reshape(1, -1) / jnp.sqrt(size)

    return FisherOperator(parameters, rows, by_datum=ByDatum(datum, inputs))


def layer_rows(operator, layers):
    """The rows of R for each layer, columns in the order of its ravelled matrix."""
    flat, unravel = jax.flatten_util.ravel_pytree(operator.parameters)
    rows = jax.jacfwd(lambda vector: operator.row_function(unravel(vector)).ravel())(flat)
    matrix = lambda layer: lambda row: layer.matrix(by_path(unravel(row))).ravel()
    return [jax.vmap(matrix(layer))(rows) for layer in layers]


def compiled_statistics(structure, operator, **options):
    return jax.jit(lambda: statistics(structure, operator, **options))()


def relative_error(left, right):
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))
