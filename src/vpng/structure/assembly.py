"""A sparse curvature G = R^T R formed from a few products with R.

The columns of R in one colour have no row in common, so that one product has the entries of all of
them. With those of two colours, row by row, come entries of G, which are added up where they
belong. Columns that nearly all rows have, each a colour of its own, are a dense matrix.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from vpng.structure.colouring import coloured
from vpng.structure.dependence import Dependence
from vpng.structure.elimination import Elimination, Slots, Sparse


class Assembly(eqx.Module):
    """How the entries of R become those of G.

    Attributes:
        colours: of every latent.
        num_shared: colours of many latents; they come first.
        single: places in the head of the latents with a colour of their own.
        rows: for every shared colour, the place of the latent in each row; one beyond all for none.
        targets: for every pair of shared colours, where in the flat G the product of each row goes.
    """

    colours: Int[Array, " n"]
    num_shared: int = eqx.field(static=True)
    single: Int[Array, " s"]
    rows: Int[Array, "shared M"]
    targets: Int[Array, "pairs M"]

    def __call__(
        self,
        push: Callable[[Float[Array, " n"]], Float[Array, " M"]],
        structure: Elimination,
        dtype: jnp.dtype,
    ) -> Sparse:
        """G of the R whose product with a vector is `push`."""
        count = self.num_shared + self.single.size
        seeds = (self.colours == jnp.arange(count)[:, None]).astype(dtype)
        entries = jax.vmap(push)(seeds)
        shared, alone = entries[: self.num_shared], entries[self.num_shared :]
        local, h = structure.num_places, structure.size_of_head
        flat = jnp.zeros(structure.num_slots + local * h + h * h, entries.dtype)
        if self.num_shared:
            first, second = np.triu_indices(self.num_shared)
            flat = flat.at[self.targets].add(shared[first] * shared[second])
        ends = np.cumsum([structure.num_slots, local * h])
        slots, border, head = jnp.split(flat, ends)
        border, head = border.reshape(local, h), head.reshape(h, h)
        # Pairs of different places in the head are met once.
        head = head + head.T - jnp.diag(jnp.diagonal(head))
        if self.single.size:
            across = jnp.zeros((structure.permutation.size + 1, self.single.size), entries.dtype)
            for row, entry in zip(self.rows, shared, strict=True):
                across = across.at[row].add(entry[:, None] * alone.T)
            border = border.at[:, self.single].add(across[:local])
            theirs = across[local:-1]
            head = head.at[:, self.single].add(theirs).at[self.single, :].add(theirs.T)
            head = head.at[self.single[:, None], self.single].add(alone @ alone.T)
        return Sparse(slots, border, head)


def assembly_of(dependence: Dependence, graph, structure: Elimination, slots: Slots) -> Assembly:
    """How to form G from R.

    Args:
        dependence: of the rows of R.
        graph: of G, with its diagonal.
        structure: of G.
        slots: of its entries.
    """
    colours = coloured(graph)
    size, local = structure.size, structure.num_places
    places = np.asarray(structure.places)
    counts = np.bincount(colours)
    # A colour of one latent of the head is a dense column; others share.
    dense = np.zeros(counts.size, bool)
    only = np.flatnonzero(counts[colours] == 1)
    dense[colours[only[places[only] >= local]]] = True
    order = np.concatenate([np.flatnonzero(~dense), np.flatnonzero(dense)])
    renumbered = np.empty(counts.size, int)
    renumbered[order] = np.arange(counts.size)
    colours, num_shared = renumbered[colours], int(np.sum(~dense))
    by_colour = np.argsort(colours, kind="stable")
    single = places[by_colour[size - int(np.sum(dense)) :]] - local

    sets = dependence.sets
    beyond = structure.permutation.size
    columns = np.full((num_shared, sets.shape[0]), beyond)
    owners = np.repeat(np.arange(sets.shape[0]), np.diff(sets.indptr))
    shared = colours[sets.indices] < num_shared
    columns[colours[sets.indices[shared]], owners[shared]] = places[sets.indices[shared]]
    first, second = np.triu_indices(num_shared)
    targets = _targets(columns[first], columns[second], structure, slots)
    labels = dependence.labels.ravel()
    as_array = lambda table: jnp.asarray(table, jnp.int32)
    return Assembly(
        as_array(colours),
        num_shared,
        as_array(single),
        as_array(columns[:, labels]),
        as_array(targets[:, labels]),
    )


def _targets(left: np.ndarray, right: np.ndarray, structure: Elimination, slots: Slots):
    """Where in the flat G the products of two entries of a row go."""
    size, local, h = structure.permutation.size, structure.num_places, structure.size_of_head
    low, high = np.minimum(left, right), np.maximum(left, right)
    in_border = structure.num_slots + low * h + (high - local)
    in_head = structure.num_slots + local * h + (low - local) * h + (high - local)
    inside = slots.of(low, high)
    found = np.where(high < local, inside, np.where(low < local, in_border, in_head))
    return np.where(high < size, found, slots.none)
