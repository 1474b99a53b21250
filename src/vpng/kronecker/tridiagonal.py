"""Block-tridiagonal K-FAC for chains of layers (Martens and Grosse, 2015, Section 4.3).

Layers i = 1..L have the factors A_i, G_i (damped) and between neighbours A_{i,i+1}, G_{i,i+1}. The
matrix whose inverse is block-tridiagonal and that agrees with F on its three block diagonals has

    F^-1 = Xi^T Lambda Xi,    Xi = I with -Psi^A_i (x) Psi^G_i above the diagonal,
    Psi^A_i = A_{i,i+1} A_{i+1}^-1,    Psi^G_i = G_{i,i+1} G_{i+1}^-1,
    Lambda_i = (A_i (x) G_i - C_i (x) D_i)^-1,    Lambda_L = A_L^-1 (x) G_L^-1,
    C_i = A_{i,i+1} A_{i+1}^-1 A_{i,i+1}^T,    D_i = G_{i,i+1} G_{i+1}^-1 G_{i,i+1}^T.

With roots R R^T = A_i^-1 and the canonical form R^T C_i R = U diag(s) U^T, likewise for G (primed),

    Lambda_i = A_i^-1 (x) G_i^-1 + (K (x) K') diag(1 / (1 - s s')) (K (x) K')^T,
    K = R U diag(s)^1/2,

so only the smaller of two neighbours needs an eigendecomposition.
"""

from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.kronecker.base import AbstractKronecker, damped_factors, sandwich
from vpng.kronecker.factor_statistics import Statistics
from vpng.kronecker.inverses import eigendecompositions, inverse_roots
from vpng.kronecker.matrices import AbstractMatrix
from vpng.kronecker.structure import Structure


class Regression(NamedTuple):
    """How a layer's inputs, or its outputs' cotangents, follow from the next layer's.

    Attributes:
        slope: Psi [n, n_next].
        directions: K [n, r].
        correlations: s [r], the squared canonical correlations, below one.
    """

    slope: Float[Array, "n k"]
    directions: Float[Array, "n r"]
    correlations: Float[Array, " r"]


class ChainInverse(NamedTuple):
    """The parts of Xi and Lambda: one pair of inverses a layer, one pair of regressions a link."""

    layers: tuple[tuple[AbstractMatrix, AbstractMatrix], ...]
    links: tuple[tuple[Regression, Regression], ...]


class KroneckerTridiagonal(AbstractKronecker):
    """F whose inverse is block-tridiagonal: each layer is correlated with its neighbours.

    For dense layers in a chain. The encoder, the sampling step and the decoder of a variational
    autoencoder are one chain with a stochastic layer in the middle.

    Couplings that are larger than the factors allow, which happens when those are truncated or
    taken as diagonal, are shrunk until the matrix is positive definite.
    """

    couples: ClassVar[bool] = True

    def __check_init__(self) -> None:
        self.structure.check_chain()

    def invert(
        self, structure: Structure, statistics: Statistics, damping: Float[Array, ""]
    ) -> ChainInverse:
        structure.check_chain()
        found = iter(
            inverse_roots(damped_factors(statistics, self.factor_damping, damping), self.rank)
        )
        by_name = {name: (next(found), next(found)) for name in statistics.layers}
        roots = [by_name[layer.weight] for layer in structure.layers]
        inverses = tuple((inputs.gram(), outputs.gram()) for inputs, outputs in roots)
        places = [(i, side) for i in range(len(statistics.couplings)) for side in range(2)]
        kept = [
            _kept(roots[i][side], roots[i + 1][side], statistics.couplings[i][side])
            for i, side in places
        ]
        whitened = [
            _whitened(roots[i][side], roots[i + 1][side], coupling)
            for (i, side), coupling in zip(places, kept, strict=True)
        ]
        regressions = iter(
            [
                _regression(roots[i][side], inverses[i + 1][side], coupling, canonical)
                for (i, side), coupling, canonical in zip(
                    places, kept, _canonical(whitened), strict=True
                )
            ]
        )
        links = tuple((next(regressions), next(regressions)) for _ in statistics.couplings)
        return ChainInverse(inverses, links)

    def multiply(
        self,
        structure: Structure,
        inverse: ChainInverse,
        matrices: dict[str, Float[Array, "n m"]],
    ) -> dict[str, Float[Array, "n m"]]:
        names = [layer.weight for layer in structure.layers]
        vectors = [matrices[name] for name in names]
        links = [(inputs.slope, outputs.slope) for inputs, outputs in inverse.links]
        for i, (left, right) in enumerate(links):
            vectors[i] = vectors[i] - left @ vectors[i + 1] @ right.T
        scaled = [
            sandwich(left, vector, right)
            for (left, right), vector in zip(inverse.layers, vectors, strict=True)
        ]
        for i, (inputs, outputs) in enumerate(inverse.links):
            seen = inputs.directions.T @ vectors[i] @ outputs.directions
            unexplained = 1.0 - jnp.outer(inputs.correlations, outputs.correlations)
            scaled[i] += inputs.directions @ (seen / unexplained) @ outputs.directions.T
        solved = scaled[:1] + [
            scaled[i + 1] - left.T @ scaled[i] @ right for i, (left, right) in enumerate(links)
        ]
        return dict(zip(names, solved, strict=True))


def _kept(
    root: AbstractMatrix, next_root: AbstractMatrix, coupling: Float[Array, "n k"]
) -> Float[Array, "n k"]:
    """What truncated factors still see of a coupling."""
    return next_root.kept(root.kept(coupling).T).T


def _whitened(
    root: AbstractMatrix, next_root: AbstractMatrix, coupling: Float[Array, "n k"]
) -> Float[Array, "n k"]:
    return next_root.transposed_mv(root.transposed_mv(coupling).T).T


def _regression(
    root: AbstractMatrix,
    next_inverse: AbstractMatrix,
    coupling: Float[Array, "n k"],
    canonical: tuple[Float[Array, "n r"], Float[Array, " r"]],
) -> Regression:
    directions, correlations = canonical
    limit = 1.0 - jnp.sqrt(jnp.finfo(coupling.dtype).eps)
    largest = jnp.max(correlations)
    shrink = jnp.where(largest > limit, limit / largest, 1.0)
    return Regression(
        jnp.sqrt(shrink) * next_inverse.mv(coupling.T).T,
        jnp.sqrt(shrink) * root.mv(directions),
        shrink * correlations,
    )


def _canonical(
    matrices: list[Float[Array, "n k"]],
) -> list[tuple[Float[Array, "n r"], Float[Array, " r"]]]:
    """U diag(s)^1/2 and s of M M^T = U diag(s) U^T, from the smaller of M M^T and M^T M."""
    wide = [matrix.shape[0] <= matrix.shape[1] for matrix in matrices]
    smaller = [m @ m.T if left else m.T @ m for m, left in zip(matrices, wide, strict=True)]
    found = []
    for matrix, left, (values, vectors) in zip(
        matrices, wide, eigendecompositions(smaller), strict=True
    ):
        values = jnp.maximum(values, 0.0)
        found.append((vectors * jnp.sqrt(values) if left else matrix @ vectors, values))
    return found
