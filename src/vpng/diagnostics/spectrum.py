"""The eigenvalues of a metric: all of them where a matrix fits, else the largest."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from vpng.fisher import FisherOperator
from vpng.numerics import cost

NUM_LEADING = 20
"""Eigenvalues of a metric that is too large for a matrix."""
NUM_PROBES = 30
"""Random signs for the traces of such a metric."""
NUM_PRODUCTS = 250
"""As many as the leading eigenvalues and the traces take at most."""


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of a positive semidefinite matrix F, per datum.

    Attributes:
        eigenvalues: from the largest down: all, or as many of the largest as were computed.
        num_parameters: P, the number of all.
        trace: tr F.
        trace_of_square: tr F^2.
    """

    eigenvalues: np.ndarray
    num_parameters: int
    trace: float
    trace_of_square: float

    @property
    def complete(self) -> bool:
        """Whether all eigenvalues are known."""
        return len(self.eigenvalues) == self.num_parameters

    @property
    def largest(self) -> float:
        """The largest eigenvalue; 0 where there are no parameters."""
        return float(np.max(self.eigenvalues, initial=0.0))

    @property
    def smallest(self) -> float:
        """The smallest eigenvalue; its lower bound 0 if only the largest ones are known."""
        return float(self.eigenvalues[-1]) if self.complete and self.num_parameters else 0.0

    @property
    def effective_rank(self) -> float:
        """(tr F)^2 / tr F^2: P if all directions matter alike, 1 if one outweighs the rest."""
        return self.trace**2 / self.trace_of_square if self.trace_of_square > 0 else 0.0

    def condition(self, damping: float) -> float:
        """The condition number of F + damping I; an upper bound if the spectrum is not complete."""
        low = self.smallest + damping
        return (self.largest + damping) / low if low > 0 else float("inf")


def spectrum_of(operator_at: Callable[[PyTree], FisherOperator], parameters: PyTree) -> Spectrum:
    """The spectrum of a metric at a point.

    F itself is formed for few parameters, R R^T for few rows, whose eigenvalues are those of
    F = R^T R and zeros. Otherwise the largest ones are found by products with F alone, and the
    traces estimated with random signs: tr F = E |R v|^2, tr F^2 = E |F v|^2.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    matrix = jax.jit(lambda params: _small_matrix(operator_at(params)))(parameters)
    if matrix is None:
        return _leading(operator_at, parameters, size)
    values = np.linalg.eigvalsh(np.asarray(matrix, np.float64))[::-1]
    # F is positive semidefinite: what lies below zero is rounding.
    values = np.maximum(np.concatenate([values, np.zeros(max(0, size - len(values)))]), 0.0)
    values = values[:size]
    return Spectrum(values, size, float(values.sum()), float(np.sum(values**2)))


def _small_matrix(operator: FisherOperator) -> Float[Array, "n n"] | None:
    rows, parameters = operator.num_rows, operator.num_parameters
    shorter = min(rows, parameters)
    leading = cost.products(NUM_PRODUCTS, shorter, shorter)
    if cost.cheapest(cost.eigenvalues(shorter), leading) == 1:
        return None
    if parameters == shorter:
        return operator.to_dense()
    if cost.gram_at_once(parameters, rows).fits:
        factor = operator.rows()
        return factor @ factor.T
    return None


def _leading(
    operator_at: Callable[[PyTree], FisherOperator], parameters: PyTree, size: int
) -> Spectrum:
    from scipy.sparse.linalg import LinearOperator, eigsh

    flat, unravel = ravel_pytree(parameters)

    @jax.jit
    def product(vector: Float[Array, " P"]) -> tuple[Float[Array, " P"], Float[Array, ""]]:
        operator = operator_at(unravel(flat))
        rows = operator.push(unravel(vector))
        return ravel_pytree(operator.pull(rows))[0], jnp.sum(rows**2)

    apply = lambda vector: np.asarray(product(jnp.asarray(vector, flat.dtype).ravel())[0])
    matrix = LinearOperator((size, size), matvec=apply, dtype=flat.dtype)  # pyright: ignore[reportCallIssue]
    start = np.ones(size, flat.dtype)
    values = eigsh(
        matrix,
        k=NUM_LEADING,
        v0=start,
        return_eigenvectors=False,
        tol=1e-3,  # pyright: ignore[reportArgumentType]
    )
    signs = jax.random.rademacher(jax.random.key(0), (NUM_PROBES, size), flat.dtype)
    squares = [(float(of_rows), float(jnp.sum(image**2))) for image, of_rows in map(product, signs)]
    trace, trace_of_square = np.mean(squares, axis=0)
    largest_first = np.maximum(np.sort(np.asarray(values, np.float64))[::-1], 0.0)
    return Spectrum(largest_first, size, float(trace), float(trace_of_square))
