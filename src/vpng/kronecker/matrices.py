"""Three forms of a symmetric factor's inverse, and of the root of that inverse.

For a damped factor M = S + d I the root R has R R^T = M^-1.
"""

from abc import abstractmethod
from math import ceil, log

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from vpng.checks import finite_scalar, positive_integer


class AbstractMatrix(eqx.Module):
    """A square matrix that multiplies from the left."""

    @abstractmethod
    def mv(self, vectors: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """M x for every column x."""

    @abstractmethod
    def transposed_mv(self, vectors: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """M^T x for every column x."""

    @abstractmethod
    def gram(self) -> "AbstractMatrix":
        """M M^T."""

    def kept(self, vectors: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """The part of every column that a truncated factor still sees."""
        return vectors


class Full(AbstractMatrix):
    """Every entry."""

    entries: Float[Array, "n n"]

    def mv(self, vectors: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return self.entries @ vectors

    def transposed_mv(self, vectors: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return self.entries.T @ vectors

    def gram(self) -> "Full":
        return Full(self.entries @ self.entries.T)


class Diagonal(AbstractMatrix):
    """diag(entries)."""

    entries: Float[Array, " n"]

    def mv(self, vectors: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return self.entries[:, None] * vectors

    transposed_mv = mv

    def gram(self) -> "Diagonal":
        return Diagonal(self.entries**2)


class LowRank(AbstractMatrix):
    """base I + U diag(gains) U^T with orthonormal U."""

    base: Float[Array, ""]
    vectors: Float[Array, "n r"]
    gains: Float[Array, " r"]

    def mv(self, vectors: Float[Array, "n k"]) -> Float[Array, "n k"]:
        inside = self.gains[:, None] * (self.vectors.T @ vectors)
        return self.base * vectors + self.vectors @ inside

    transposed_mv = mv

    def kept(self, vectors: Float[Array, "n k"]) -> Float[Array, "n k"]:
        return self.vectors @ (self.vectors.T @ vectors)

    def gram(self) -> "LowRank":
        base = self.base**2
        return LowRank(base, self.vectors, (self.base + self.gains) ** 2 - base)


class AbstractRank(eqx.Module):
    """How many eigen-directions of a factor are kept."""

    @abstractmethod
    def rank(self, size: int) -> int | None:
        """For a factor of this size; None for all."""


class FullRank(AbstractRank):
    """Every direction."""

    def rank(self, size: int) -> None:
        return None


class LogarithmicRank(AbstractRank):
    """The paper's K ln(size) leading directions of large factors; the damping stands for the rest.

    Attributes:
        multiple: K.
        threshold: smaller factors keep every direction.
    """

    multiple: float = eqx.field(default=4.0, static=True)
    threshold: int = eqx.field(default=256, static=True)

    def __check_init__(self) -> None:
        finite_scalar("multiple", self.multiple, minimum=0.0, strict=True)
        positive_integer("threshold", self.threshold)

    def rank(self, size: int) -> int | None:
        kept = ceil(self.multiple * log(size)) if size > 1 else size
        return None if size < self.threshold or kept >= size else kept


def inverse_root(
    factor: Float[Array, "n n"] | Float[Array, " n"],
    damping: Float[Array, ""],
    rank: AbstractRank,
) -> AbstractMatrix:
    """R with R R^T = (factor + damping I)^-1, for a full or a diagonal factor."""
    if factor.ndim == 1:
        return Diagonal(1.0 / jnp.sqrt(factor + damping))
    size = factor.shape[0]
    kept = rank.rank(size)
    if kept is None:
        eye = jnp.eye(size, dtype=factor.dtype)
        lower = jnp.linalg.cholesky(factor + damping * eye)
        return Full(solve_triangular(lower, eye, lower=True).T)
    values, vectors = leading_eigenpairs(factor, kept)
    base = 1.0 / jnp.sqrt(damping)
    return LowRank(base, vectors, 1.0 / jnp.sqrt(values + damping) - base)


def leading_eigenpairs(
    matrix: Float[Array, "n n"], rank: int, *, num_iterations: int = 6, oversampling: int = 8
) -> tuple[Float[Array, " r"], Float[Array, "n r"]]:
    """The largest eigenvalues of a positive semidefinite matrix, by subspace iteration.

    Each product with the matrix shrinks what lies outside the leading subspace by the ratio of the
    eigenvalues; the extra columns keep that ratio small for the ones returned.
    """
    size = matrix.shape[0]
    width = min(size, rank + oversampling)
    start = jax.random.normal(jax.random.key(0), (size, width), matrix.dtype)

    def iterate(_: int, basis: Array) -> Array:
        return jnp.linalg.qr(matrix @ basis)[0]

    basis = jax.lax.fori_loop(0, num_iterations, iterate, jnp.linalg.qr(start)[0])
    values, rotation = jnp.linalg.eigh(basis.T @ matrix @ basis)
    vectors = basis @ rotation
    return jnp.maximum(values[::-1][:rank], 0.0), vectors[:, ::-1][:, :rank]
