"""Curvature as a lazy positive semidefinite operator F = R^T R."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from vpng.fisher.families import Whitened
from vpng.numerics import cost, derivatives
from vpng.problem import leaves_in_use
from vpng.products import product

_IN_PARTS_FROM = 32
"""Smallest number of columns for which a Jacobian is made in parts."""

_MOST_PARTS = 8
"""A leaf of one part in so many of the columns is differentiated alone."""


class TracedFunction(NamedTuple):
    """A function of a tree, traced once at a point: models are slow to trace."""

    jaxpr: ClosedJaxpr
    point: PyTree

    @classmethod
    def of(cls, function: Callable[[PyTree], Array], point: PyTree) -> "TracedFunction":
        """`function` at `point`."""
        return cls(jax.make_jaxpr(function)(point), point)

    @property
    def num_rows(self) -> int:
        """Entries of what the function returns."""
        [rows] = self.jaxpr.out_avals
        return math.prod(rows.shape)

    def jacobian(self) -> Float[Array, "M P"]:
        """The Jacobian, columns in the order of `ravel_pytree`.

        In forward mode by parts: what does not depend on a leaf is not pushed along with it, say
        the Cholesky factor of a kernel with latents that are multiplied by it.
        """
        evaluate = lambda leaves: jaxpr_as_fun(self.jaxpr)(*leaves)[0].ravel()
        leaves = jax.tree.leaves(self.point)
        flat, unravel = ravel_pytree(self.point)
        if 2 * self.num_rows < flat.size:
            return jax.jacrev(lambda vector: evaluate(jax.tree.leaves(unravel(vector))))(flat)

        def columns(part: list[int]) -> Array:
            moving, restore = ravel_pytree([leaves[index] for index in part])

            def alone(vector: Array) -> Array:
                moved = dict(zip(part, restore(vector), strict=True))
                return evaluate([moved.get(index, leaf) for index, leaf in enumerate(leaves)])

            return derivatives.jacobian(alone, moving)

        parts = _parts([leaf.size for leaf in leaves])
        if len(parts) == 1:
            return columns(*parts)
        by_leaf: dict[int, Array] = {}
        for part in parts:
            ends = np.cumsum([leaves[index].size for index in part])
            by_leaf |= dict(zip(part, jnp.split(columns(part), ends[:-1], axis=1), strict=True))
        return jnp.concatenate([by_leaf[index] for index in range(len(leaves))], axis=1)


def _parts(sizes: list[int]) -> list[list[int]]:
    """Indices of leaves to be differentiated together: large leaves alone, all others at once.

    Every part makes the program longer, so that there are few, and none for small Jacobians.
    """
    everything = list(range(len(sizes)))
    if sum(sizes) < _IN_PARTS_FROM:
        return [everything]
    large = [index for index in everything if _MOST_PARTS * sizes[index] >= sum(sizes)]
    rest = [index for index in everything if index not in large]
    return [[index] for index in large] + ([rest] if rest else [])


class Bottleneck(NamedTuple):
    """Rows that depend on the parameters only through an intermediate, one per particle.

    R = R_outer J_inner, so F = sum_k J_inner^T (R_outer^T R_outer) J_inner: the Gram matrix is
    taken in the space of the intermediate. Exact, and cheaper if that is small, or if parts of the
    rows depend on parts of it.

    Attributes:
        middle: the intermediates, stacked over particles.
        inner: parameters -> intermediates.
        outer: (intermediate, per-particle draws) -> rows of one particle, in factors.
        draws: what `outer` holds fixed, stacked over particles.
    """

    middle: PyTree
    inner: Callable[[PyTree], PyTree]
    outer: Callable[[PyTree, PyTree], Whitened]
    draws: PyTree

    def is_cheaper(self, parameters: PyTree) -> bool:
        """Whether F is to be taken through the intermediate."""
        middle = jax.tree.leaves(self.middle)
        size = sum(leaf.size // leaf.shape[0] for leaf in middle)
        leaves = jax.tree.leaves(parameters)
        num_parameters = sum(leaf.size for leaf in leaves)
        # A guide may draw all latents as one vector and hand on its pieces: both are counted here.
        in_parts = len(leaves) == 1 < len(middle) and size <= 2 * num_parameters
        return size < num_parameters or (in_parts and num_parameters >= _IN_PARTS_FROM)

    def gram(self, parameters: PyTree) -> Float[Array, "P P"]:
        """F through the intermediate."""
        flat, unravel = ravel_pytree(parameters)
        leaves, structure = jax.tree.flatten(self.middle)
        first = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)
        of_leaves = lambda leaves, draws: self.outer(jax.tree.unflatten(structure, leaves), draws)
        coordinates = lambda leaves, draws: of_leaves(leaves, draws).coordinates
        [read] = leaves_in_use(
            lambda leaves: [coordinates(leaves, first(self.draws))], first(leaves)
        )
        # Discrete latents do not move.
        moves = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        used = [here and moving for here, moving in zip(read, moves, strict=True)]
        keep = lambda leaves: [leaf for leaf, here in zip(leaves, used, strict=True) if here]

        def jacobian(leaves: list[Array], draws: PyTree) -> Array:
            def of_moving(moving: list[Array]) -> Array:
                rest = iter(moving)
                pairs = zip(leaves, used, strict=True)
                return coordinates([next(rest) if here else leaf for leaf, here in pairs], draws)

            return TracedFunction.of(of_moving, keep(leaves)).jacobian()

        def weights(leaves: list[Array], draws: PyTree) -> Array:
            return of_leaves(leaves, draws).weights

        def small(leaves: list[Array], draws: PyTree) -> Array:
            factor = weights(leaves, draws)[:, None] * jacobian(leaves, draws)
            return product(factor.T, factor)

        def inner(vector: Array) -> Array:
            kept = keep(jax.tree.leaves(self.inner(unravel(vector))))
            return jax.vmap(lambda leaves: ravel_pytree(leaves)[0])(kept)

        if not any(used):
            return jnp.zeros((flat.size, flat.size), flat.dtype)
        one = first(leaves), first(self.draws)
        if self._is_the_same_for_all(jacobian, *one):
            grams = _weighted_grams(jax.vmap(weights)(leaves, self.draws), jacobian(*one))
        else:
            grams = jax.vmap(small)(leaves, self.draws)
        jacobians = derivatives.jacobian(inner, flat)
        halves = jax.vmap(product)(grams, jacobians).reshape(-1, flat.size)
        return product(jacobians.reshape(-1, flat.size).T, halves)

    def _is_the_same_for_all(
        self, jacobian: Callable[..., Array], leaves: list[Array], draws: PyTree
    ) -> bool:
        """Whether a Jacobian depends on no particle, as that of a linear predictor does not."""
        several = jax.tree.leaves(self.middle)[0].shape[0] > 1
        return several and not any(
            leaves_in_use(lambda *given: [jacobian(*given)], leaves, draws)[0]
        )


def _weighted_grams(
    weights: Float[Array, "K M"], jacobian: Float[Array, "M d"]
) -> Float[Array, "K d d"]:
    """J^T diag(w_k^2) J for every k: one product with all pairs of columns, if those are few."""
    num_rows, size = jacobian.shape
    # Of order one each: squares may overflow or vanish where the products of both do not.
    sizes = _largest(weights, axis=1) * _largest(jacobian, axis=0)
    squares = (weights / _largest(weights, axis=1)) ** 2
    jacobian = jacobian / _largest(jacobian, axis=0)
    # M d^2 products of pairs go through the memory, or K M d weighted columns.
    if size < len(weights):
        pairs = (jacobian[:, :, None] * jacobian[:, None, :]).reshape(num_rows, -1)
        grams = (squares @ pairs).reshape(-1, size, size)
    else:
        grams = jnp.einsum("kmi,mj->kij", squares[:, :, None] * jacobian, jacobian)
    return sizes[:, :, None] * grams * sizes[:, None, :]


def _largest(matrix: Float[Array, "n m"], axis: int) -> Float[Array, "..."]:
    """The largest size along an axis, which is kept; 1 where there is nothing but zeros."""
    largest = jnp.max(jnp.abs(matrix), axis=axis, keepdims=True, initial=0.0)
    return jnp.where(largest > 0, largest, 1.0)


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

        def one(inputs: PyTree) -> Array:
            return TracedFunction.of(lambda moved: self.rows(moved, inputs), parameters).jacobian()

        every = jax.vmap(one)(self.inputs)
        return every.reshape(-1, every.shape[-1])


def _sum_of_squares(
    row_function: Callable[[PyTree], Float[Array, "..."]], parameters: PyTree
) -> Float[Array, " P"]:
    """The sum of squares of every column of the Jacobian, of which a few rows are there at once."""
    flat, unravel = ravel_pytree(parameters)
    rows, pull = jax.vjp(lambda vector: row_function(unravel(vector)).ravel(), flat)
    one = cost.jacobian(1, flat.size)
    at_once = max(1, min(rows.size, int(cost.MEMORY_BUDGET // one.memory)))

    def add(index: Array, total: Array) -> Array:
        places = index * at_once + jnp.arange(at_once)
        # Places past the last row are outside of every one-hot vector: rows of zero.
        basis = jax.nn.one_hot(places, rows.size, dtype=rows.dtype)
        (some,) = jax.vmap(pull)(basis)
        return total + jnp.sum(some**2, axis=0)

    return jax.lax.fori_loop(0, -(-rows.size // at_once), add, jnp.zeros_like(flat))


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
        return derivatives.linearised(self.row_function, self.parameters)

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
        """The factor R as a matrix: rows as `push` has them, columns as `ravel_pytree` has them."""
        if self.by_datum is None:
            return self.factor()
        shape = jax.eval_shape(self.row_function, self.parameters).shape
        matrix = self.by_datum.matrix(self.parameters)
        if len(shape) < 3:
            return matrix
        particles, data, per_datum = shape
        by_datum = matrix.reshape(data, particles, per_datum, -1)
        return jnp.swapaxes(by_datum, 0, 1).reshape(matrix.shape)

    def factor(self) -> Float[Array, "M P"]:
        """`rows` in any order, which is all that F = R^T R asks."""
        if self.by_datum is not None:
            return self.by_datum.matrix(self.parameters)
        return TracedFunction.of(self.row_function, self.parameters).jacobian()

    def to_dense(self) -> Float[Array, "P P"]:
        """F as a matrix."""
        if self.terms:
            return reduce(jnp.add, [term.to_dense() for term in self.terms])
        middle = self.bottleneck
        if middle is not None and middle.is_cheaper(self.parameters):
            return middle.gram(self.parameters)
        traced = TracedFunction.of(self.row_function, self.parameters)
        if cost.gram_at_once(traced.num_rows, self.num_parameters).fits:
            factor = traced.jacobian() if self.by_datum is None else self.factor()
            return product(factor.T, factor)
        flat, unravel = ravel_pytree(self.parameters)
        basis = jnp.eye(flat.size, dtype=flat.dtype)
        times = self.product()
        column = lambda one_hot: ravel_pytree(times(unravel(one_hot)))[0]
        return jax.lax.map(column, basis, batch_size=cost.COLUMNS_AT_ONCE)

    def diagonal(self) -> Float[Array, "P"]:
        """The diagonal of F."""
        if self.terms:
            return reduce(jnp.add, [term.diagonal() for term in self.terms])
        size = self.num_parameters
        if self.bottleneck is not None and cost.matrix_product(size, size, size).fits:
            return jnp.diagonal(self.to_dense())
        if cost.jacobian(self.num_rows, size).fits:
            return jnp.sum(self.factor() ** 2, axis=0)
        by_datum = self.by_datum
        if by_datum is None:
            return _sum_of_squares(self.row_function, self.parameters)

        def add(total: Array, inputs: PyTree) -> tuple[Array, None]:
            one = lambda parameters: by_datum.rows(parameters, inputs)
            return total + _sum_of_squares(one, self.parameters), None

        flat, _ = ravel_pytree(self.parameters)
        return jax.lax.scan(add, jnp.zeros_like(flat), by_datum.inputs)[0]

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

    def scaled(self, factor: float) -> "FisherOperator":
        """`factor` times F."""
        root = math.sqrt(factor)
        by_datum, bottleneck = self.by_datum, self.bottleneck
        if by_datum is not None:
            rows = by_datum.rows
            by_datum = by_datum._replace(rows=lambda *arguments: root * rows(*arguments))
        if bottleneck is not None:
            outer = bottleneck.outer
            bottleneck = bottleneck._replace(outer=lambda *given: outer(*given).times(root))
        row_function = self.row_function
        return FisherOperator(
            self.parameters,
            lambda parameters: root * row_function(parameters),
            by_datum,
            bottleneck,
            self.random_signs,
            tuple(term.scaled(factor) for term in self.terms),
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


def mean_of(operators: list[FisherOperator]) -> FisherOperator:
    """The mean of operators in the same parameters."""
    if len(operators) == 1:
        return operators[0]
    first, *rest = [operator.scaled(1.0 / len(operators)) for operator in operators]
    return sum(rest, start=first)
