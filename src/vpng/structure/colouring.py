"""Columns of a sparse matrix that one product can tell apart.

Two columns with no row in common may be pushed at once: every row of the product belongs to one of
them. All groups of a plate go in as many products as one group has latents (Curtis, Powell & Reid,
1974).
"""

import numpy as np
from jaxtyping import Int
from scipy.sparse.csgraph import connected_components

from vpng.structure.dependence import Table, as_table


def coloured(graph: Table) -> Int[np.ndarray, " n"]:
    """A colour for every node, different ones for neighbours.

    Args:
        graph: which columns have rows in common.
    """
    # What touches most of the others leaves them no colour of its own.
    heavy = np.diff(graph.indptr) > graph.shape[0] / 2
    colours = np.zeros(graph.shape[0], int)
    first = 0
    for part in (np.flatnonzero(heavy), np.flatnonzero(~heavy)):
        if part.size:
            colours[part] = first + _within(as_table(graph[part][:, part]))
            first = colours[part].max() + 1
    return colours


def _within(graph: Table) -> Int[np.ndarray, " n"]:
    count, component = connected_components(graph, directed=False)
    sizes = np.bincount(component, minlength=count)
    # In a group of latents each has its own colour, if it has few; else the first that is free.
    order = np.argsort(component, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    colours = np.empty(graph.shape[0], int)
    colours[order] = np.arange(order.size) - np.repeat(starts, sizes)
    large = np.flatnonzero(sizes[component] > _FEW)
    if large.size:
        colours[large] = _greedy(as_table(graph[large][:, large]))
    return colours


_FEW = 4
"""Latents of a group that is small enough to give each a colour of its own."""


def _greedy(graph: Table) -> Int[np.ndarray, " n"]:
    colours = np.full(graph.shape[0], -1)
    pointers, neighbours = graph.indptr, graph.indices
    for node in range(graph.shape[0]):
        around = colours[neighbours[pointers[node] : pointers[node + 1]]]
        taken = np.unique(around[around >= 0])
        free = np.flatnonzero(taken != np.arange(taken.size))
        colours[node] = free[0] if free.size else taken.size
    return colours
