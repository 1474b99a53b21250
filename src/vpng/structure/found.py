"""The structure of a curvature, found from the rows of which it is made."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Array, Int, PyTree

from vpng.structure import primitives, recurrences  # noqa: F401
from vpng.structure.assembly import assembly_of
from vpng.structure.dependence import MOST_ENTRIES, Dependence, Table, TooDenseError, as_table
from vpng.structure.elimination import elimination_of
from vpng.structure.ordering import Order, ordered
from vpng.structure.propagation import dependence_of
from vpng.structure.structure import Structure

MOST_HEADS = 6
"""Numbers of latents that are tried as the head."""


def structure_of(rows: Callable[[PyTree], Array], point: PyTree) -> Structure | None:
    """The structure of G = R^T R for the Jacobian R of `rows`; None if there is none to be used.

    It holds at every point, and for all data with the same integers in the same places.
    """
    try:
        return structure_from(dependence_of(rows, point))
    except TooDenseError:
        return None


def structure_from(dependence: Dependence) -> Structure | None:
    """The structure for rows of this dependence; None if an elimination would be as dear as any."""
    used = np.unique(dependence.labels)
    sets = dependence.sets[used]
    if float(np.sum(np.diff(sets.indptr).astype(float) ** 2)) > MOST_ENTRIES:
        return None
    graph = as_table((sets.T @ sets).astype(bool))
    order = _cheapest(graph)
    size = graph.shape[0]
    if order.work > size**3 / 4:
        return None
    elimination, slots = elimination_of(order, size)
    return Structure(elimination, assembly_of(dependence, graph, elimination, slots))


def dense(size: int) -> Structure:
    """No structure at all: one dense block."""
    order = Order((), np.arange(size), size**3 / 3)
    return Structure(elimination_of(order, size)[0])


def _cheapest(graph: Table) -> Order:
    """The order of least work, over a few heads of the latents with most neighbours."""
    apart = as_table(graph.copy())
    apart.setdiag(False)
    apart.eliminate_zeros()
    degrees = np.diff(apart.indptr)
    heads = [np.flatnonzero(degrees > bound) for bound in _bounds(degrees)]
    return min((ordered(apart, head) for head in heads), key=lambda order: order.work)


def _bounds(degrees: Int[np.ndarray, " n"]) -> list[int]:
    """Degrees with the widest gaps above them, on a logarithmic scale."""
    distinct = np.unique(degrees)
    gaps = np.diff(np.log1p(distinct))
    widest = np.argsort(-gaps, kind="stable")[: MOST_HEADS - 1]
    return [int(distinct[-1]), *(int(distinct[at]) for at in widest)]
