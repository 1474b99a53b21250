"""What is zero in a curvature, and what follows: how it is formed and factorised."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

from vpng.fisher.operator import FisherOperator
from vpng.numerics.derivatives import linearised
from vpng.structure.assembly import Assembly
from vpng.structure.elimination import Elimination, Factorised, Sparse

TOLERANCE = 1e-2
"""Of a product with the structured matrix, relative to the same with R^T R."""

NUM_PROBES = 4
"""Random signs for a diagonal."""


class Structure(eqx.Module):
    """What is zero in G = R^T R, and how the rest is formed and factorised.

    Attributes:
        elimination: the order of elimination, and what it fills in.
        assembly: how entries of R become those of G; None if G is one dense block.
    """

    elimination: Elimination
    assembly: Assembly | None = None

    @property
    def num_products(self) -> int:
        """Products with R that form G."""
        if self.assembly is None:
            return self.elimination.size
        return self.assembly.num_shared + self.assembly.single.size

    def zeros(self, dtype: DTypeLike) -> Sparse:
        """A matrix of zeros."""
        return self.elimination.zeros(dtype)

    def metric(self, operator: FisherOperator) -> Sparse:
        """The matrix of an operator."""
        if self.assembly is None:
            return self.zeros(jnp.float32)._replace(head=operator.to_dense())
        return self.of(operator.row_function, operator.parameters)

    def of(self, rows: Callable[[PyTree], Array], point: PyTree) -> Sparse:
        """G at a point, from the function whose Jacobian is R.

        Integers in the data may be others than those for which the structure was found. A product
        with random signs tells; what is left is the diagonal, which every structure has.
        """
        assert self.assembly is not None
        flat, unravel = ravel_pytree(point)
        push, pull = linearised(lambda vector: rows(unravel(vector)).ravel(), flat)
        matrix = self.assembly(push, self.elimination, flat.dtype)
        signs = jax.random.rademacher(jax.random.key(0), flat.shape, flat.dtype)
        wanted = pull(push(signs))
        wrong = self.elimination.times(matrix, signs) - wanted
        holds = jnp.sum(wrong**2) <= TOLERANCE**2 * jnp.sum(wanted**2)
        # What is not finite is no matter of structure.
        holds = holds | ~jnp.isfinite(jnp.sum(wanted))
        return jax.lax.cond(holds, lambda: matrix, lambda: self._diagonal(push, pull, flat))

    def _diagonal(
        self, push: Callable[[Array], Array], pull: Callable[[Array], Array], like: Array
    ) -> Sparse:
        """The mean of (R^T v)^2 over a few vectors of random signs v."""
        rows = jax.eval_shape(push, like)
        shape = (NUM_PROBES, *rows.shape)
        signs = jax.random.rademacher(jax.random.key(1), shape, rows.dtype)
        found = jnp.mean(jax.vmap(pull)(signs) ** 2, axis=0)
        return self.elimination.with_added(self.zeros(like.dtype), found)

    def factor(
        self, matrix: Sparse, scale: Float[Array, " n"], damping: Float[Array, ""]
    ) -> Factorised:
        """Of S G S + damping."""
        return self.elimination.factor(matrix, scale, damping)
