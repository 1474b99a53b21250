"""The eigenvectors of a layer's Kronecker factors, and parameters in their coordinates."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from vpng.fisher import Predictive, Probed
from vpng.kronecker.factor_statistics import statistics
from vpng.kronecker.structure import Structure, by_path, with_leaves
from vpng.problem import AbstractProblem, Parameters

Coordinates = dict[str, Float[Array, "..."]]
"""What a rule in the eigenbasis sees: a matrix for every layer, by its weight, and the others."""


class Basis(NamedTuple):
    """The eigenvectors of one layer's factors, leading ones first.

    Attributes:
        inputs: of A, [n, r].
        outputs: of G, [m, m]; None if the outputs are not turned.
    """

    inputs: Float[Array, "n r"]
    outputs: Float[Array, "m m"] | None

    def into(self, matrix: Float[Array, "n m"]) -> Float[Array, "r m"]:
        """Q_A^T V Q_G."""
        turned = self.inputs.T @ matrix
        return turned if self.outputs is None else turned @ self.outputs

    def back(self, matrix: Float[Array, "r m"]) -> Float[Array, "n m"]:
        """Q_A V Q_G^T."""
        turned = self.inputs @ matrix
        return turned if self.outputs is None else turned @ self.outputs.T


def into(structure: Structure, bases: dict[str, Basis], tree: PyTree) -> Coordinates:
    """A tree of parameters in the coordinates of the bases; what is in no layer stays."""
    leaves = by_path(tree)
    turned = {
        layer.weight: bases[layer.weight].into(layer.matrix(leaves)) for layer in structure.layers
    }
    return {**turned, **{other.path: leaves[other.path] for other in structure.others}}


def back(
    structure: Structure, bases: dict[str, Basis], coordinates: Coordinates, like: PyTree
) -> PyTree:
    """The tree with these coordinates, in the shapes and types of `like`."""
    found = {other.path: coordinates[other.path] for other in structure.others}
    for layer in structure.layers:
        found |= layer.leaves(bases[layer.weight].back(coordinates[layer.weight]))
    leaves = by_path(like)
    return with_leaves(
        like, {path: leaf.astype(leaves[path].dtype) for path, leaf in found.items()}
    )


def leading_eigenvectors(factor: Float[Array, "n n"], rank: int) -> Float[Array, "n r"]:
    """The eigenvectors of the `rank` largest eigenvalues, largest first."""
    _, vectors = jnp.linalg.eigh(factor)
    return vectors[:, ::-1][:, :rank]


@eqx.filter_jit
def bases_of_data(
    problem: AbstractProblem,
    structure: Structure,
    parameters: Parameters,
    batch: PyTree,
    max_rank: int,
) -> dict[str, Basis]:
    """The leading directions of the inputs of each layer that the data feed."""
    metric = Predictive(Probed(num_probes=1), num_particles=1)
    operator = metric.operator(problem, parameters, batch, jax.random.key(0))
    found = statistics(structure, operator).layers
    return {
        layer.weight: Basis(
            leading_eigenvectors(found[layer.weight].inputs, min(layer.num_inputs, max_rank)), None
        )
        for layer in structure.layers
        if not layer.sources
    }
