"""In which order latents are eliminated: rounds of latents that do not touch each other.

Everything that an elimination needs is the graph of the curvature. In every round a set of latents
without an edge between them is eliminated at once, and their neighbours become neighbours of each
other. The groups of a plate take as many rounds as one of them has latents; of a chain every round
takes about half; nested plates go from the inside out. What is left, or has too many neighbours, is
the head: it is dense.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from vpng.structure.dependence import Table, as_table

MOST_NEIGHBOURS = 8
"""Of a latent that is eliminated in a round, the head not counted."""

SMALL_HEAD = 32
"""Latents that are not worth a round of their own."""

MOST_ROUNDS = 24
"""Every round makes the program longer."""


class Round(NamedTuple):
    """Latents that are eliminated at once.

    Attributes:
        nodes: which.
        neighbours: of each, among those that are eliminated later.
    """

    nodes: Int[np.ndarray, " count"]
    neighbours: Table


class Order(NamedTuple):
    """The rounds, and the head that is left.

    Attributes:
        rounds: in turn.
        head: dense, in the order of the latents.
        work: multiplications of one factorisation.
    """

    rounds: tuple[Round, ...]
    head: Int[np.ndarray, " h"]
    work: float


def ordered(graph: Table, head: Int[np.ndarray, " h"]) -> Order:
    """The rounds for all but the head, which grows by what they leave.

    Args:
        graph: of the curvature, without its diagonal.
        head: latents that are not eliminated.
    """
    left = np.setdiff1d(np.arange(graph.shape[0]), head)
    here = as_table(graph[left][:, left])
    rounds: list[Round] = []
    while left.size > (SMALL_HEAD if rounds else 0) and len(rounds) < MOST_ROUNDS:
        chosen = _independent(here)
        if chosen.size < max(1, left.size // 8):
            break
        rest = np.setdiff1d(np.arange(left.size), chosen)
        across = as_table(here[chosen][:, rest])
        full = as_table((across.data, left[rest][across.indices], across.indptr),
                         shape=(chosen.size, graph.shape[0]))  # fmt: skip
        rounds.append(Round(left[chosen], full))
        filled = as_table((here[rest][:, rest] + across.T @ across).astype(bool))
        filled.setdiag(False)
        filled.eliminate_zeros()
        here, left = filled, left[rest]
    head = np.sort(np.concatenate([head, left]))
    return Order(tuple(rounds), head, _work(rounds, head.size))


def _independent(graph: Table) -> Int[np.ndarray, " count"]:
    """Nodes of few neighbours, none of them next to another."""
    degrees = np.diff(graph.indptr)
    order = np.argsort(degrees, kind="stable")
    candidates = order[degrees[order] <= MOST_NEIGHBOURS]
    free = np.ones(graph.shape[0], bool)
    chosen = []
    pointers, neighbours = graph.indptr, graph.indices
    for node in candidates:
        if free[node]:
            chosen.append(node)
            free[neighbours[pointers[node] : pointers[node + 1]]] = False
    return np.sort(np.array(chosen, int))


def _work(rounds: list[Round], size: int) -> float:
    widths = [
        (each.nodes.size, int(np.diff(each.neighbours.indptr).max(initial=0))) for each in rounds
    ]
    return size**3 / 3 + sum(count * (size + width + 1.0) ** 2 for count, width in widths)
