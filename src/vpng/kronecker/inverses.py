"""Factorisations of all factors at once: on a mesh each is done by one device."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jaxtyping import Array, Float

from vpng.distributed.division import Task, divided
from vpng.distributed.orthogonal import from_reflections, reflections
from vpng.distributed.symmetric import mirrored, pack, unpack
from vpng.kronecker.matrices import AbstractMatrix, AbstractRank, Full, inverse_root

DampedFactor = tuple[Float[Array, "n n"] | Float[Array, " n"], Float[Array, ""]]
Eigenpairs = tuple[Float[Array, " n"], Float[Array, "n n"]]


def inverse_roots(factors: Sequence[DampedFactor], rank: AbstractRank) -> list[AbstractMatrix]:
    """Of each factor S with damping d the R with R R^T = (S + d I)^-1; a full R is triangular."""
    return _inverted(factors, lambda s, d: inverse_root(s, d, rank), lambda upper: upper)


def inverses(factors: Sequence[DampedFactor], rank: AbstractRank) -> list[AbstractMatrix]:
    """Of each factor S with damping d the inverse of S + d I."""
    return _inverted(factors, lambda s, d: inverse_root(s, d, rank).gram(), mirrored)


def eigendecompositions(matrices: Sequence[Float[Array, "n n"]]) -> list[Eigenpairs]:
    """The eigenvalues, in ascending order, and eigenvectors of symmetric matrices."""

    def task(matrix: Float[Array, "n n"]) -> Task:
        size = matrix.shape[0]
        solve = lambda matrix: tuple(jnp.linalg.eigh(matrix))
        send = lambda pair: (pair[0], reflections(pair[1]))
        receive = lambda pair: (pair[0], from_reflections(pair[1], size))
        return Task(solve, (matrix,), float(size) ** 3, send, receive)

    return divided([task(matrix) for matrix in matrices])


def _inverted(
    factors: Sequence[DampedFactor],
    invert: Callable[[Array, Array], AbstractMatrix],
    whole: Callable[[Array], Array],
) -> list[AbstractMatrix]:
    def task(factor: Array, damping: Array) -> Task:
        size = factor.shape[0]

        def send(matrix: AbstractMatrix) -> AbstractMatrix:
            return Full(pack(matrix.entries)) if isinstance(matrix, Full) else matrix

        def receive(matrix: AbstractMatrix) -> AbstractMatrix:
            return Full(whole(unpack(matrix.entries, size))) if isinstance(matrix, Full) else matrix

        return Task(invert, (factor, damping), float(size) ** 3, send, receive)

    found = iter(divided([task(*pair) for pair in factors if pair[0].ndim == 2]))
    return [next(found) if factor.ndim == 2 else invert(factor, added) for factor, added in factors]
