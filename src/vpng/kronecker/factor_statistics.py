"""The factors of every block, from one forward and one or more backward passes.

For a layer with inputs a_e (homogeneous coordinate included) and cotangents g_e of its outputs at
the examples e, row r of R is sum_e vec(a_e g_re^T). Taking inputs and cotangents as independent,
and cotangents of different examples as uncorrelated, the layer's block of F = R^T R is

    sum_r sum_e (a_e a_e^T) (x) (g_re g_re^T)  ~  A (x) G,
    A = mean_e a_e a_e^T,    G = sum_r sum_e g_re g_re^T.

Rows with random signs are summed over data and particles before they are pulled back, since the
products of different ones vanish in expectation: one backward pass for each sample or probe.
Exact rows are pulled back one at a time, but for the data, which share a pass.
"""

from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from vpng.distributed.symmetric import gram
from vpng.errors import InputError
from vpng.fisher.operator import FisherOperator
from vpng.kronecker.coupling import coupled
from vpng.kronecker.discovery import TracedLayers, Use, look_at
from vpng.kronecker.structure import Layer, Structure, by_path, with_leaves


class Factors(NamedTuple):
    """A (x) G, the approximation of one block of F.

    Attributes:
        inputs: A [n, n], or [n_i, n_j] between two layers.
        outputs: G [m, m], its diagonal [m], or [m_i, m_j] between two layers.
    """

    inputs: Float[Array, "n n"]
    outputs: Float[Array, "m m"] | Float[Array, " m"]


class Statistics(NamedTuple):
    """All that a Kronecker-factored curvature knows about F.

    Attributes:
        layers: the factors of each layer, by the path of its weight.
        couplings: those between each layer of a chain and the next; empty if not asked for.
        dense: the block of the small parameters in no layer, in the order of `ravel_pytree`.
        diagonal: of the large ones, by path.
    """

    layers: dict[str, Factors]
    couplings: tuple[Factors, ...]
    dense: Float[Array, "p p"]
    diagonal: dict[str, Float[Array, "..."]]


def statistics(
    structure: Structure,
    operator: FisherOperator,
    *,
    couplings: bool = False,
    diagonal_outputs: bool = False,
) -> Statistics:
    """The factors of `operator`'s blocks.

    Args:
        structure: the blocks, as discovered for the operator's parameters.
        operator: F.
        couplings: whether to compute the factors between neighbours of a chain.
        diagonal_outputs: whether G of the last layers is diagonal: exact if the likelihood has
            independent outputs, each with its own parameters (Bernoulli, Poisson, Normal).

    Raises:
        InputError: if the operator's layers are not those of the structure.
    """
    traced = look_at(operator, dense_limit=structure.dense_limit)
    _check_same(structure, traced.structure)
    dtype = statistics_dtype(operator.parameters)
    uses = {layer.weight: traced.uses[layer.weight] for layer in structure.layers}
    rows, pull, activations = _taps(traced, operator, structure.diagonal)
    size = None if operator.by_datum is None else operator.by_datum.num_data
    inputs = {
        layer.weight: [
            _homogeneous(layer, use, activations[use.position]).astype(dtype)
            for use in uses[layer.weight]
        ]
        for layer in structure.layers
    }

    def backward(cotangent: Array) -> tuple[dict, tuple, dict]:
        at_outputs, at_leaves = pull(cotangent)
        outputs = {
            name: [use.product.outputs(at_outputs[use.position]).astype(dtype) for use in group]
            for name, group in uses.items()
        }
        factors = {
            name: sum(
                _outer(g, size, diagonal=diagonal_outputs and name in structure.outputs)
                / use.product.num_positions
                for g, use in zip(outputs[name], group, strict=True)
            )
            for name, group in uses.items()
        }
        between = _between(structure, outputs, jnp.sum) if couplings else ()
        return factors, between, {path: v.astype(dtype) ** 2 for path, v in at_leaves.items()}

    outputs, between_outputs, squares = _summed(backward, _separated(operator, rows), rows)
    layers = {
        name: Factors(_input_factor(inputs[name], group, size), outputs[name])
        for name, group in uses.items()
    }
    between_inputs = _between(structure, inputs, jnp.mean) if couplings else ()
    pairs = tuple(Factors(a, g) for a, g in zip(between_inputs, between_outputs, strict=True))
    exact = structure.read & structure.diagonal if not operator.random_signs else frozenset()
    if exact:
        squares |= by_path(_unravelled(operator, exact, _block(operator, exact).diagonal()))
    dense = _block(operator, structure.dense).to_dense() if structure.dense else jnp.zeros((0, 0))
    return Statistics(layers, pairs, dense.astype(dtype), squares)


def zero_statistics(
    structure: Structure, parameters: PyTree, *, couplings: bool, diagonal_outputs: bool
) -> Statistics:
    """Statistics of a vanishing F, of the shapes that `statistics` gives."""
    dtype = statistics_dtype(parameters)
    zeros = lambda *shape: jnp.zeros(shape, dtype)
    layers = {}
    for layer in structure.layers:
        m = layer.num_outputs
        thin = diagonal_outputs and layer.weight in structure.outputs
        layers[layer.weight] = Factors(
            zeros(layer.num_inputs, layer.num_inputs), zeros(m) if thin else zeros(m, m)
        )
    pairs = tuple(
        Factors(
            zeros(layer.num_inputs, later.num_inputs), zeros(layer.num_outputs, later.num_outputs)
        )
        for layer, later in pairwise(structure.layers)
        if couplings
    )
    leaves = by_path(parameters)
    size = sum(leaves[path].size for path in structure.dense)
    diagonal = {path: zeros(*leaves[path].shape) for path in structure.diagonal}
    return Statistics(layers, pairs, zeros(size, size), diagonal)


def statistics_dtype(parameters: PyTree) -> jnp.dtype:
    """The parameters' floating type, at least single precision."""
    return jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(parameters)))


def part(tree: PyTree, paths: frozenset[str]) -> PyTree:
    """`tree` with None for every leaf whose path is not among `paths`."""
    return with_leaves(tree, {path: v for path, v in by_path(tree).items() if path in paths})


def _block(operator: FisherOperator, paths: frozenset[str]) -> FisherOperator:
    active = part(operator.parameters, paths)
    return operator.restricted(active, lambda some: eqx.combine(some, operator.parameters))


def _unravelled(
    operator: FisherOperator, paths: frozenset[str], flat: Float[Array, " q"]
) -> PyTree:
    return ravel_pytree(part(operator.parameters, paths))[1](flat)


Pull = Callable[[Array], tuple[dict[int, Array], dict[str, Array]]]


def _taps(
    traced: TracedLayers, operator: FisherOperator, free: frozenset[str]
) -> tuple[Array, Pull, dict[int, Array]]:
    """Rows, their pull-back to the layers' outputs and `free` leaves, the layers' activations."""
    leaves = by_path(operator.parameters)
    uses = [use for group in traced.uses.values() for use in group]
    nothing = {}
    for use in uses:
        output: Any = traced.program.equations[use.position].source.outvars[0].aval
        nothing[use.position] = jnp.zeros(output.shape, output.dtype)

    def run(additions: dict[int, Array], some: dict[str, Array]) -> tuple[Array, dict[int, Array]]:
        (rows,), seen = traced.program.evaluate(list((leaves | some).values()), additions)
        return rows, {
            use.position: seen[use.position][1 - use.product.weight_position] for use in uses
        }

    chosen = {path: leaf for path, leaf in leaves.items() if path in free}
    rows, pull, activations = jax.vjp(run, nothing, chosen, has_aux=True)
    return rows, pull, activations


def _homogeneous(layer: Layer, use: Use, activations: Array) -> Float[Array, "... n"]:
    inputs = use.product.inputs(activations)
    if layer.bias is None:
        return inputs
    ones = jnp.ones((*inputs.shape[:-1], 1), inputs.dtype)
    return jnp.concatenate([inputs, ones], axis=-1)


def _input_factor(
    inputs: list[Array], uses: tuple[Use, ...], num_data: int | None
) -> Float[Array, "n n"]:
    """The mean over the examples of all uses; the positions of a convolution are summed."""
    count = sum(
        prod(a.shape[:-1]) / use.product.num_positions for a, use in zip(inputs, uses, strict=True)
    )
    return reduce(jnp.add, [gram(a, num_data) for a in inputs]) / count


def _outer(vectors: Float[Array, "... n"], num_data: int | None, *, diagonal: bool) -> Array:
    if diagonal:
        return jnp.sum(vectors**2, axis=tuple(range(vectors.ndim - 1)))
    return gram(vectors, num_data)


def _between(
    structure: Structure, vectors: dict[str, list[Array]], reduce: Callable[..., Array]
) -> tuple[Array, ...]:
    names = [layer.weight for layer in structure.layers]
    return tuple(
        coupled((name, vectors[name][0]), (later, vectors[later][0]), reduce)
        for name, later in pairwise(names)
    )


def _separated(operator: FisherOperator, rows: Array) -> tuple[int, ...]:
    """The axes of the rows whose entries are pulled back one at a time.

    Rows that separate by datum have the data on their last axis but one.
    """
    axes = tuple(range(rows.ndim))
    if operator.random_signs:
        return axes[-1:] if operator.by_datum is not None else ()
    return axes[:-2] + axes[-1:] if operator.by_datum is not None else axes


def _summed(backward: Callable[[Array], PyTree], separated: tuple[int, ...], rows: Array) -> PyTree:
    """The sum of `backward` over one cotangent for each entry along the separated axes."""
    sizes = [size if axis in separated else 1 for axis, size in enumerate(rows.shape)]
    count = prod(sizes)
    if count == 1:
        return backward(jnp.ones_like(rows))

    def step(total: PyTree, entry: Array) -> tuple[PyTree, None]:
        chosen = (jnp.arange(count) == entry).reshape(sizes).astype(rows.dtype)
        new = backward(jnp.broadcast_to(chosen, rows.shape))
        return jax.tree.map(jnp.add, total, new), None

    zero = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(backward, rows)
    )
    return jax.lax.scan(step, zero, jnp.arange(count))[0]


def _check_same(structure: Structure, found: Structure) -> None:
    wanted = {(layer.weight, layer.bias, layer.size) for layer in structure.layers}
    came = {(layer.weight, layer.bias, layer.size) for layer in found.layers}
    if wanted != came:
        listed = ", ".join(sorted(f"{weight} {size}" for weight, _, size in wanted ^ came))
        raise InputError(
            "metric: expected the layers that the structure was discovered with, got others at "
            f"{listed}; call vpng.kronecker.discover with the same problem and metric."
        )
