"""Which inputs each element of an array may depend on."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_array, vstack

Table = Any
"""A sparse matrix by rows; SciPy's annotations do not say that it has two dimensions."""

MOST_ENTRIES = 20_000_000
"""Of a table of sets: beyond it nothing is sparse enough to be worth finding."""


def as_table(*arguments: Any, **options: Any) -> Table:
    """SciPy's `csr_array`."""
    return csr_array(*arguments, **options)


class TooDenseError(Exception):
    """The sets of inputs take more memory than their absence of structure is worth."""


class Dependence(NamedTuple):
    """The set of inputs behind every element of an array; equal labels, equal sets.

    Attributes:
        labels: of every element, its row of the table.
        sets: one set of inputs in each row.
    """

    labels: Int[np.ndarray, "..."]
    sets: Table

    @classmethod
    def on_itself(cls, shape: tuple[int, ...], first: int, num_inputs: int) -> "Dependence":
        """Each element is an input of its own: `first`, `first` + 1, and so on."""
        size = int(np.prod(shape))
        columns = np.arange(first, first + size)
        sets = _table(columns, np.arange(size + 1), (size, num_inputs))
        return cls(np.arange(size).reshape(shape), sets)

    @classmethod
    def on_nothing(cls, shape: tuple[int, ...], num_inputs: int) -> "Dependence":
        """No element depends on any input."""
        return cls(
            np.zeros(shape, int), _table(np.zeros(0, int), np.zeros(2, int), (1, num_inputs))
        )

    @property
    def num_inputs(self) -> int:
        """Of all inputs, whether anything depends on them or not."""
        return self.sets.shape[1]

    @property
    def by_element(self) -> Table:
        """The table with one row for every element."""
        return self.sets[self.labels.ravel()]

    def moved(self, function: Callable[[np.ndarray], np.ndarray]) -> "Dependence":
        """Of an array whose elements were moved, copied or dropped as `function` does."""
        return Dependence(function(self.labels), self.sets)

    def of_all(self) -> Table:
        """The union over all elements."""
        return _union(self.sets[np.unique(self.labels)])

    def everywhere(self, shape: tuple[int, ...]) -> "Dependence":
        """Of an array each of whose elements may depend on every element of this one."""
        return Dependence(np.zeros(shape, int), self.of_all())

    def over(self, axes: tuple[int, ...]) -> "Dependence":
        """Of an array reduced over some of its axes."""
        kept = [axis for axis in range(self.labels.ndim) if axis not in axes]
        shape = tuple(self.labels.shape[axis] for axis in kept)
        rows = self.labels.transpose(*kept, *axes).reshape(int(np.prod(shape)), -1)
        if rows.shape[1] == 1:
            return Dependence(rows.reshape(shape), self.sets)
        if rows.size and np.all(rows == rows[:1]):
            return Dependence(np.zeros(shape, int), _union(self.sets[np.unique(rows[0])]))
        return Dependence(np.arange(len(rows)).reshape(shape), unions(rows, self.sets))

    def along(self, axes: tuple[int, ...]) -> "Dependence":
        """Of an array of the same shape, each element of which mixes all along some axes."""
        labels = np.expand_dims(self.over(axes).labels, tuple(sorted(axes)))
        return Dependence(np.broadcast_to(labels, self.labels.shape), self.over(axes).sets)


def joined(parts: list[Dependence]) -> Dependence:
    """Of an array made element by element from arrays of one shape."""
    first, *rest = parts
    for part in rest:
        first = _pair(first, part)
    return first


def stacked(parts: list[Dependence], function: Callable[..., np.ndarray]) -> Dependence:
    """Of an array put together from others, as `function` does from a list of arrays."""
    offsets = np.cumsum([0, *(part.sets.shape[0] for part in parts)])
    labels = [part.labels + offset for part, offset in zip(parts, offsets, strict=False)]
    return Dependence(function(labels), as_table(vstack([part.sets for part in parts])))


def unions(rows: Int[np.ndarray, "m r"], sets: Table) -> Table:
    """The union of the sets with the labels of each row."""
    ends = np.arange(len(rows) + 1) * rows.shape[1]
    chosen = _table(rows.ravel(), ends, (len(rows), sets.shape[0]))
    chosen.sum_duplicates()
    return multiplied(chosen, sets)


def multiplied(chosen: Table, sets: Table) -> Table:
    """The unions of the sets chosen in each row.

    Raises:
        TooDenseError: if they have too many elements.
    """
    if chosen.nnz * (sets.nnz / max(1, sets.shape[0])) > MOST_ENTRIES:
        raise TooDenseError
    return as_table((chosen @ sets).astype(bool))


def added(left: Table, right: Table) -> Table:
    """The unions of two tables, row by row.

    Raises:
        TooDenseError: if they have too many elements.
    """
    if left.nnz + right.nnz > MOST_ENTRIES:
        raise TooDenseError
    return as_table((left + right).astype(bool))


def _pair(left: Dependence, right: Dependence) -> Dependence:
    if left.sets is right.sets and left.labels is right.labels:
        return left
    if right.sets.shape[0] == 1:
        return Dependence(left.labels, added(left.sets, _repeated(right.sets, left.sets.shape[0])))
    if left.sets.shape[0] == 1:
        return _pair(right, left)
    if left.sets.shape[0] == right.sets.shape[0] and np.array_equal(left.labels, right.labels):
        return Dependence(left.labels, added(left.sets, right.sets))
    codes = left.labels.ravel() * right.sets.shape[0] + right.labels.ravel()
    found, places = np.unique(codes, return_inverse=True)
    mine, theirs = np.divmod(found, right.sets.shape[0])
    sets = added(left.sets[mine], right.sets[theirs])
    return Dependence(places.reshape(left.labels.shape), sets)


def _repeated(row: Table, count: int) -> Table:
    if row.nnz * count > MOST_ENTRIES:
        raise TooDenseError
    return row[np.zeros(count, int)]


def _union(sets: Table) -> Table:
    columns = np.unique(sets.indices)
    return _table(columns, np.array([0, columns.size]), (1, sets.shape[1]))


def _table(columns: np.ndarray, ends: np.ndarray, shape: tuple[int, int]) -> Table:
    return as_table((np.ones(columns.size, bool), columns, ends), shape=shape)
