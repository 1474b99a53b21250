"""What linear algebra costs, known from shapes before any of it is done.

The question is always the same: is a matrix to be formed, factorised and solved with, or are k
products with its factor R [M, P] cheaper? Products of matrices and factorisations use a number many
times once it has come from memory, and take as long as their operations. A product of a matrix with
one vector uses each number once, and takes as long as memory needs to bring it. So an operation's
time, counted in operations of floating point, is

    max(operations, FLOPS_PER_BYTE * bytes that are moved),

and with R as a plain matrix P x P is formed for fewer than about 2 FLOPS_PER_BYTE k parameters, or
M x M for as few rows. `benchmarks/cost_model.py` compares this with measured times.
"""

import math
from typing import NamedTuple

FLOPS_PER_BYTE = 10.0
"""Operations of a product of matrices in the time that one byte takes to come from memory."""

MEMORY_BUDGET = 2**30
"""Bytes that one step of a computation may keep at once, results included."""

ITEM = 4
"""Bytes of a number: in double precision everything takes twice as much, and the choices stay."""

SHORT_SOLVE = 30
"""Products of an iterative solve that stops early, as it may where the right-hand side is noisy."""

COLUMNS_AT_ONCE = 16
"""Of a matrix that is made by products."""


class Cost(NamedTuple):
    """What a computation takes; the costs of computations one after the other are added.

    Attributes:
        time: in operations of floating point.
        memory: the most bytes that are kept at once.
    """

    time: float = 0.0
    memory: float = 0.0

    @classmethod
    def of(cls, *, operations: float, moved: float, kept: float) -> "Cost":
        """Of one operation.

        Args:
            operations: of floating point.
            moved: numbers read and written.
            kept: numbers kept at once.
        """
        return cls(max(operations, FLOPS_PER_BYTE * ITEM * moved), ITEM * kept)

    def then(self, other: "Cost") -> "Cost":
        """Of this computation and `other` after it."""
        return Cost(self.time + other.time, max(self.memory, other.memory))

    def times(self, count: float) -> "Cost":
        """Of this computation done so many times, one after the other."""
        return Cost(count * self.time, self.memory)

    def batched(self, count: float) -> "Cost":
        """Of so many such computations at once."""
        return Cost(count * self.time, count * self.memory)

    @property
    def fits(self) -> bool:
        """Whether it stays within the budget of memory."""
        return self.memory <= MEMORY_BUDGET


def in_turn(*costs: Cost) -> Cost:
    """Of computations one after the other."""
    total = Cost()
    for cost in costs:
        total = total.then(cost)
    return total


def cheapest(*costs: Cost) -> int:
    """The place of the quickest that fits, the first of several; of the smallest if none fits."""
    fitting = [cost.time if cost.fits else math.inf for cost in costs]
    if min(fitting) < math.inf:
        return fitting.index(min(fitting))
    sizes = [cost.memory for cost in costs]
    return sizes.index(min(sizes))


def matrix_product(rows: int, inner: int, columns: int) -> Cost:
    """Of [rows, inner] times [inner, columns]."""
    entries = rows * inner + inner * columns + rows * columns
    return Cost.of(operations=2.0 * rows * inner * columns, moved=entries, kept=entries)


def product(rows: int, columns: int) -> Cost:
    """Of one product v -> R^T (R v)."""
    return Cost.of(operations=4.0 * rows * columns, moved=2.0 * rows * columns, kept=rows * columns)


def jacobian(rows: int, columns: int) -> Cost:
    """Of the matrix R: a pass through the rows for each of its rows or columns, all at once."""
    shorter = min(rows, columns)
    # What moves through the rows is there beside the result.
    return Cost.of(
        operations=2.0 * rows * columns * shorter,
        moved=2.0 * rows * columns,
        kept=2.0 * rows * columns,
    )


def cholesky(size: int) -> Cost:
    """Of the triangular factor of [size, size]."""
    return Cost.of(operations=size**3 / 3.0, moved=2.0 * size**2, kept=2.0 * size**2)


def eigenvalues(size: int) -> Cost:
    """Of all eigenvalues of a symmetric matrix, most of which is the reduction to three diagonals.

    Half of its operations are products of the matrix with a vector.
    """
    half = 2.0 * size**3 / 3.0
    vectors = Cost.of(operations=half, moved=half / 2.0, kept=2.0 * size**2)
    return vectors.then(Cost.of(operations=half, moved=size**2, kept=2.0 * size**2))


def solve(size: int, right_hand_sides: int = 1) -> Cost:
    """Of solving with a triangular factor and its transpose."""
    numbers = 2.0 * size**2 + 4.0 * size * right_hand_sides
    return Cost.of(
        operations=2.0 * size**2 * right_hand_sides, moved=numbers, kept=size**2 + numbers
    )


def gram_at_once(rows: int, columns: int) -> Cost:
    """Of R^T R as a matrix, R formed on the way."""
    return jacobian(rows, columns).then(matrix_product(columns, rows, columns))


def gram(rows: int, columns: int) -> Cost:
    """Of R^T R as a matrix: a few columns at a time, by products, where R does not fit."""
    at_once = gram_at_once(rows, columns)
    if at_once.fits:
        return at_once
    few = Cost.of(
        operations=4.0 * rows * columns * COLUMNS_AT_ONCE,
        moved=2.0 * rows * columns,
        kept=columns**2 + COLUMNS_AT_ONCE * (rows + columns),
    )
    return few.times(columns / COLUMNS_AT_ONCE)


def dense(rows: int, columns: int, right_hand_sides: int = 1) -> Cost:
    """Of solving with R^T R formed as a matrix of [columns, columns]."""
    return in_turn(
        gram(rows, columns),
        cholesky(columns),
        solve(columns, right_hand_sides),
    )


def dual(rows: int, columns: int) -> Cost:
    """Of solving once with R R^T formed as a matrix of [rows, rows]; R is read six times more."""
    return in_turn(
        jacobian(rows, columns),
        matrix_product(rows, columns, rows),
        cholesky(rows),
        product(rows, columns).times(3),
        solve(rows).times(2),
    )


def products(count: int, rows: int, columns: int) -> Cost:
    """Of `count` products v -> R^T (R v) by the function of the rows: R itself is not kept."""
    return Cost(product(rows, columns).times(count).time, ITEM * (rows + columns))


def forming_pays(columns: int, num_products: int, rows: int | None = None) -> bool:
    """Whether solving with R^T R as a matrix is no dearer than so many products.

    Args:
        columns: the number of parameters P.
        num_products: that would do instead.
        rows: M; as many as columns unless given.
    """
    rows = columns if rows is None else rows
    return cheapest(dense(rows, columns), products(num_products, rows, columns)) == 0


def largest_formed(num_products: int) -> int:
    """The most parameters for which `forming_pays`, with as many rows; at least one."""
    low, high = 1, 2
    while forming_pays(high, num_products):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if forming_pays(middle, num_products) else (low, middle)
    return low
