"""Curvature as a lazy positive semidefinite operator F = R^T R."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

_DENSE_FROM_ROWS_LIMIT = 2**26
"""Largest M x P factor (entries) that `to_dense` builds; beyond it columns are made by products."""


class Bottleneck(NamedTuple):
    """Rows that depend on the parameters only through a small intermediate, one per particle.

    R = R_outer J_inner, so F = sum_k J_inner^T (R_outer^T R_outer) J_inner: the Gram matrix is
    taken in the small space. Exact, and cheaper whenever the intermediate has fewer entries.

    Attributes:
        inner: parameters -> intermediates, stacked over particles.
        outer: (intermediate, per-particle draws) -> rows of one particle.
        draws: what `outer` holds fixed, stacked over particles.
    """

    inner: Callable[[PyTree], PyTree]
    outer: Callable[[PyTree, PyTree], Array]
    draws: PyTree

    def size(self, parameters: PyTree) -> int:
        """Entries of the intermediate of one particle."""
        middle = jax.eval_shape(self.inner, parameters)
        return sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(middle))

    def gram(self, parameters: PyTree) -> Float[Array, "P P"]:
        """F through the intermediate."""
        flat, unravel = ravel_pytree(parameters)
        middle = self.inner(parameters)
        _, unravel_one = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], middle))
        flatten = jax.vmap(lambda tree: ravel_pytree(tree)[0])

        def small(middle: Array, draws: PyTree) -> Array:
            _, push = jax.linearize(lambda m: self.outer(unravel_one(m), draws).ravel(), middle)
            transposed = jax.vmap(push)(jnp.eye(middle.size, dtype=middle.dtype))
            return transposed @ transposed.T

        grams = jax.vmap(small)(flatten(middle), self.draws)
        jacobians = jax.jacfwd(lambda vector: flatten(self.inner(unravel(vector))))(flat)
        return jnp.einsum("kip,kij,kjq->pq", jacobians, grams, jacobians)


class ByDatum(NamedTuple):
    """Rows that separate by datum: `rows(parameters, inputs_i)` are those of datum i."""

    rows: Callable[[PyTree, PyTree], Array]
    inputs: PyTree

    @property
    def num_data(self) -> int:
        """The number of data."""
        return jax.tree.leaves(self.inputs)[0].shape[0]

    def matrix(self, parameters: PyTree) -> Float[Array, "M P"]:
        """All rows, each differentiated alone: a batch costs as much as its data one by one."""
        flat, unravel = ravel_pytree(parameters)
        first = jax.tree.map(lambda leaf: leaf[0], self.inputs)
        count = jax.eval_shape(self.rows, parameters, first).size
        jacobian = jax.jacfwd if count >= flat.size else jax.jacrev

        def one(inputs: PyTree) -> Array:
            return jacobian(lambda vector: self.rows(unravel(vector), inputs).ravel())(flat)

        return jax.vmap(one)(self.inputs).reshape(-1, flat.size)


@dataclass(frozen=True)
class FisherOperator:
    """F = R^T R with R the Jacobian of `row_function` at `parameters`.

    Attributes:
        parameters: the point, and the structure of the space that F acts on.
        row_function: parameters -> rows, an array of any shape.
        by_datum: the same rows datum by datum, where that is how they arise (local latents).
        bottleneck: the same rows through a small intermediate, where there is one (global latents).
        random_signs: whether rows have mean zero and are independent given the latents (sampled or
            probed), so that they may be summed before the outer product without bias.
        terms: the operators that this one is the sum of, if it is one.
    """

    parameters: PyTree
    row_function: Callable[[PyTree], Float[Array, "..."]]
    by_datum: ByDatum | None = None
    bottleneck: Bottleneck | None = None
    random_signs: bool = False
    terms: tuple["FisherOperator", ...] = ()

    @cached_property
    def num_rows(self) -> int:
        """M, the number of rows of R."""
        return jax.eval_shape(self.row_function, self.parameters).size

    @cached_property
    def num_parameters(self) -> int:
        """P, the number of columns of R."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.parameters))

    @cached_property
    def _linearised(self) -> tuple[Callable[[PyTree], Array], Callable[[Array], PyTree]]:
        _, push = jax.linearize(self.row_function, self.parameters)
        transposed = jax.linear_transpose(push, self.parameters)
        return push, lambda rows: transposed(rows)[0]

    def push(self, vector: PyTree) -> Float[Array, "..."]:
        """R v, in the shape of the rows."""
        return self._linearised[0](vector)

    def pull(self, rows: Float[Array, "..."]) -> PyTree:
        """R^T w."""
        return self._linearised[1](rows)

    def product(self) -> Callable[[PyTree], PyTree]:
        """The map v -> F v, linearised here and now.

        Take it before entering another trace (a solver, a loop): the linearisation is kept, and one
        made inside that trace must not outlive it.
        """
        push, pull = self._linearised
        return lambda vector: pull(push(vector))

    def mv(self, vector: PyTree) -> PyTree:
        """F v = R^T (R v)."""
        return self.product()(vector)

    def rows(self) -> Float[Array, "M P"]:
        """The factor R as a matrix, columns in the order of `ravel_pytree`."""
        if self.by_datum is not None:
            return self.by_datum.matrix(self.parameters)
        flat, unravel = ravel_pytree(self.parameters)
        jacobian = jax.jacfwd if self.num_rows >= flat.size else jax.jacrev
        return jacobian(lambda vector: self.row_function(unravel(vector)).ravel())(flat)

    def to_dense(self) -> Float[Array, "P P"]:
        """F as a matrix."""
        if self.terms:
            return sum(term.to_dense() for term in self.terms)
        middle = self.bottleneck
        if middle is not None and middle.size(self.parameters) < self.num_parameters:
            return middle.gram(self.parameters)
        if self.num_rows * self.num_parameters <= _DENSE_FROM_ROWS_LIMIT:
            factor = self.rows()
            return factor.T @ factor
        flat, unravel = ravel_pytree(self.parameters)
        basis = jnp.eye(flat.size, dtype=flat.dtype)
        product = self.product()
        return jax.lax.map(lambda e: ravel_pytree(product(unravel(e)))[0], basis, batch_size=16)

    def diagonal(self) -> Float[Array, "P"]:
        """The diagonal of F."""
        if self.terms:
            return sum(term.diagonal() for term in self.terms)
        if self.num_parameters**2 <= _DENSE_FROM_ROWS_LIMIT and self.bottleneck is not None:
            return jnp.diagonal(self.to_dense())
        return jnp.sum(self.rows() ** 2, axis=0)

    def restricted(self, active: PyTree, embed: Callable[[PyTree], PyTree]) -> "FisherOperator":
        """The block of F that belongs to some of the parameters, the rest held fixed.

        Args:
            active: the values of those parameters.
            embed: puts values of them among the fixed ones.
        """
        by_datum, bottleneck = self.by_datum, self.bottleneck
        if by_datum is not None:
            rows = by_datum.rows
            by_datum = by_datum._replace(rows=lambda part, inputs: rows(embed(part), inputs))
        if bottleneck is not None:
            inner = bottleneck.inner
            bottleneck = bottleneck._replace(inner=lambda part: inner(embed(part)))
        row_function = self.row_function
        return FisherOperator(
            active,
            lambda part: row_function(embed(part)),
            by_datum,
            bottleneck,
            self.random_signs,
            tuple(term.restricted(active, embed) for term in self.terms),
        )

    def __add__(self, other: "FisherOperator") -> "FisherOperator":
        mine, theirs = self.row_function, other.row_function

        def both(parameters: PyTree) -> Array:
            return jnp.concatenate([mine(parameters).ravel(), theirs(parameters).ravel()])

        return FisherOperator(
            self.parameters,
            both,
            random_signs=self.random_signs and other.random_signs,
            terms=(*(self.terms or (self,)), *(other.terms or (other,))),
        )
