"""A sparse symmetric matrix in the order of its elimination, and its Cholesky factor.

The latents of each round stand together, rounds one after the other, the head last:

    G = [[A, B], [B^T, D]],

A sparse over the rounds, B the border and D the head, both dense. The factor L has the sparsity of
A with what is filled in. All rounds have as many places, some of them empty, so that a loop over
them is one small program. Its cost grows with the number of latents times the square of the head.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from vpng.structure.ordering import Order


class Sparse(NamedTuple):
    """The entries of a matrix of a known structure; sums and multiples are those of the matrix.

    Attributes:
        local: of A: its diagonal, then the entries of each latent with those of its neighbours that
            are eliminated later, and a last one that stays zero.
        border: B.
        head: D.
    """

    local: Float[Array, " slots"]
    border: Float[Array, "places h"]
    head: Float[Array, "h h"]


class Elimination(eqx.Module):
    """The structure of a symmetric positive definite matrix.

    Attributes:
        num_rounds: of independent latents.
        width: most neighbours of a latent among those eliminated later.
        permutation: the latent of every place, those of the head last; one beyond the last latent
            where a place is empty.
        places: of each latent.
        neighbours: the places of those, for every place; one beyond the last where there are fewer.
        pairs: slots of all pairs i <= j of neighbours.
    """

    num_rounds: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    permutation: Int[Array, " all_places"]
    places: Int[Array, " n"]
    neighbours: Int[Array, "places width"]
    pairs: Int[Array, "places pairs"]

    @property
    def size(self) -> int:
        """Of all latents."""
        return self.places.size

    @property
    def num_places(self) -> int:
        """Of the rounds."""
        return self.neighbours.shape[0]

    @property
    def size_of_head(self) -> int:
        """Latents that are not eliminated in rounds."""
        return self.permutation.size - self.num_places

    @property
    def num_slots(self) -> int:
        """Of A."""
        return self.num_places * (1 + self.width) + 1

    def zeros(self, dtype: DTypeLike) -> Sparse:
        """The matrix of zeros."""
        h = self.size_of_head
        shapes = ((self.num_slots,), (self.num_places, h), (h, h))
        return Sparse(*(jnp.zeros(shape, dtype) for shape in shapes))

    def diagonal(self, matrix: Sparse) -> Float[Array, " n"]:
        """The diagonal, in the order of the latents."""
        placed = jnp.append(matrix.local[: self.num_places], jnp.diagonal(matrix.head))
        return placed[self.places]

    def with_added(self, matrix: Sparse, diagonal: Float[Array, " n"]) -> Sparse:
        """With something added to the diagonal, given in the order of the latents."""
        mine, theirs = self._split(self._placed(diagonal))
        local = matrix.local.at[: self.num_places].add(mine)
        return Sparse(local, matrix.border, matrix.head + jnp.diag(theirs))

    def times(self, matrix: Sparse, vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """The product with a vector."""
        mine, theirs = self._split(self._placed(vector))
        off = self._off(matrix.local)
        found = matrix.local[: self.num_places] * mine + matrix.border @ theirs
        found = found + jnp.sum(off * jnp.append(mine, 0.0)[self.neighbours], axis=1)
        found = jnp.append(found, 0.0).at[self.neighbours].add(off * mine[:, None])[:-1]
        head = matrix.border.T @ mine + matrix.head @ theirs
        return jnp.append(found, head)[self.places]

    def to_dense(self, matrix: Sparse) -> Float[Array, "n n"]:
        """The whole matrix."""
        unit = jnp.eye(self.size, dtype=matrix.local.dtype)
        return jax.vmap(lambda column: self.times(matrix, column))(unit)

    def factor(
        self, matrix: Sparse, scale: Float[Array, " n"], damping: Float[Array, ""]
    ) -> "Factorised":
        """Of S G S + damping, S = diag(scale) given in the order of the latents."""
        placed = self._placed(scale)
        mine, theirs = self._split(placed)
        empty = self.permutation[: self.num_places] == self.size
        diagonal = matrix.local[: self.num_places] * mine**2 + jnp.where(empty, 1.0, damping)
        by = mine[:, None] * jnp.append(mine, 0.0)[self.neighbours]
        off = self._off(matrix.local) * by
        local = jnp.concatenate([diagonal, off.ravel(), jnp.zeros(1, diagonal.dtype)])
        local = local.astype(matrix.local.dtype)
        border = mine[:, None] * matrix.border * theirs
        head = theirs[:, None] * matrix.head * theirs
        head = head + damping * jnp.eye(theirs.size, dtype=head.dtype)
        local, border = self._eliminated(local, border)
        if self.size_of_head:
            head = jnp.linalg.cholesky(head - border.T @ border)
        return Factorised(self, Sparse(local, border, head), placed)

    def _eliminated(
        self, local: Float[Array, " slots"], border: Float[Array, "places h"]
    ) -> tuple[Float[Array, " slots"], Float[Array, "places h"]]:
        """The columns of L of all rounds."""
        if not self.width:
            root = jnp.sqrt(local[:-1])
            return jnp.append(root, 0.0), border / root[:, None]
        count, (first, second) = self.count, np.triu_indices(self.width)

        def one(index: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
            local, border = carry
            start, begin = index * count, self.num_places + index * count * self.width
            rows = lambda array: jax.lax.dynamic_slice_in_dim(array, start, count)
            root = jnp.sqrt(rows(local))
            off = jax.lax.dynamic_slice_in_dim(local, begin, count * self.width)
            off = off.reshape(count, self.width) / root[:, None]
            own = rows(border) / root[:, None]
            local = jax.lax.dynamic_update_slice_in_dim(local, root, start, 0)
            local = jax.lax.dynamic_update_slice_in_dim(local, off.ravel(), begin, 0)
            local = local.at[rows(self.pairs)].add(-off[:, first] * off[:, second])
            border = jax.lax.dynamic_update_slice_in_dim(border, own, start, 0)
            border = border.at[rows(self.neighbours)].add(-off[:, :, None] * own[:, None, :])
            return local, border

        padded = jnp.pad(border, ((0, 1), (0, 0)))
        local, border = jax.lax.fori_loop(0, self.num_rounds, one, (local, padded))
        return local, border[:-1]

    @property
    def count(self) -> int:
        """Places of each round."""
        return self.num_places // max(1, self.num_rounds)

    def _off(self, local: Float[Array, " slots"]) -> Float[Array, "places width"]:
        return local[self.num_places : -1].reshape(self.num_places, self.width)

    def _placed(self, vectors: Float[Array, "... n"]) -> Float[Array, "... all_places"]:
        """In the order of elimination, zero where a place is empty."""
        padded = jnp.pad(vectors, [(0, 0)] * (vectors.ndim - 1) + [(0, 1)])
        return padded[..., self.permutation]

    def _split(self, placed: Float[Array, "..."]) -> tuple[Float[Array, "..."], Array]:
        return placed[..., : self.num_places], placed[..., self.num_places :]


class Factorised(NamedTuple):
    """(G + damping S^-2)^-1 = V^T V with V = L^-1 S in the order of elimination.

    Attributes:
        structure: of the matrix.
        lower: L.
        scale: S.
    """

    structure: Elimination
    lower: Sparse
    scale: Float[Array, " all_places"]

    def whiten(self, vectors: Float[Array, "k n"]) -> Float[Array, "k all_places"]:
        """V applied to each."""
        structure = self.structure
        mine, head = structure._split(structure._placed(vectors) * self.scale)
        mine = self._forwards(mine.T).T
        if structure.size_of_head:
            left = (head - mine @ self.lower.border).T
            head = solve_triangular(self.lower.head, left, lower=True).T
        return jnp.concatenate([mine, head], axis=1)

    def unwhiten(self, whitened: Float[Array, "k all_places"]) -> Float[Array, "k n"]:
        """V^T applied to each."""
        structure = self.structure
        mine, head = structure._split(whitened)
        if structure.size_of_head:
            head = solve_triangular(self.lower.head, head.T, lower=True, trans=1).T
            mine = mine - head @ self.lower.border.T
        mine = self._backwards(mine.T).T
        return (jnp.concatenate([mine, head], axis=1) * self.scale)[:, structure.places]

    def _forwards(self, vectors: Float[Array, "places k"]) -> Float[Array, "places k"]:
        structure, root = self.structure, self.lower.local[: vectors.shape[0]]
        if not structure.width:
            return vectors / root[:, None]
        off, count = structure._off(self.lower.local), structure.count

        def one(index: Array, vectors: Array) -> Array:
            rows = lambda array: jax.lax.dynamic_slice_in_dim(array, index * count, count)
            own = rows(vectors) / rows(root)[:, None]
            vectors = jax.lax.dynamic_update_slice_in_dim(vectors, own, index * count, 0)
            moves = rows(off)[:, :, None] * own[:, None, :]
            return vectors.at[rows(structure.neighbours)].add(-moves)

        padded = jnp.pad(vectors, ((0, 1), (0, 0)))
        return jax.lax.fori_loop(0, structure.num_rounds, one, padded)[:-1]

    def _backwards(self, vectors: Float[Array, "places k"]) -> Float[Array, "places k"]:
        structure, root = self.structure, self.lower.local[: vectors.shape[0]]
        if not structure.width:
            return vectors / root[:, None]
        off, count = structure._off(self.lower.local), structure.count

        def one(index: Array, vectors: Array) -> Array:
            start = (structure.num_rounds - 1 - index) * count
            rows = lambda array: jax.lax.dynamic_slice_in_dim(array, start, count)
            across = rows(off)[:, :, None] * vectors[rows(structure.neighbours)]
            own = (rows(vectors) - jnp.sum(across, axis=1)) / rows(root)[:, None]
            return jax.lax.dynamic_update_slice_in_dim(vectors, own, start, 0)

        padded = jnp.pad(vectors, ((0, 1), (0, 0)))
        return jax.lax.fori_loop(0, structure.num_rounds, one, padded)[:-1]


class Slots(NamedTuple):
    """Where the entries of A are.

    Attributes:
        keys: of the pairs of places i <= j, in ascending order.
        slots: of each.
        size: number of places.
        none: the slot that belongs to no pair.
    """

    keys: Int[np.ndarray, " entries"]
    slots: Int[np.ndarray, " entries"]
    size: int
    none: int

    def of(self, first: Int[np.ndarray, "..."], second: Int[np.ndarray, "..."]) -> np.ndarray:
        """The slots of pairs of places, in any order; that of none for places beyond all."""
        low, high = np.minimum(first, second), np.maximum(first, second)
        keys = low * self.size + high
        at = np.minimum(np.searchsorted(self.keys, keys), max(0, self.keys.size - 1))
        if not self.keys.size:
            return np.full(keys.shape, self.none)
        found = (high < self.size) & (self.keys[at] == keys)
        return np.where(found, self.slots[at], self.none)


def elimination_of(order: Order, size: int) -> tuple[Elimination, Slots]:
    """The structure, and where its entries are.

    Args:
        order: of the elimination.
        size: number of all latents.
    """
    num_rounds = len(order.rounds)
    count = max((each.nodes.size for each in order.rounds), default=0)
    degrees = [np.diff(each.neighbours.indptr) for each in order.rounds]
    width = max((int(each.max(initial=0)) for each in degrees), default=0)
    num_places = num_rounds * count
    permutation = np.full(num_places + order.head.size, size)
    for index, each in enumerate(order.rounds):
        permutation[index * count : index * count + each.nodes.size] = each.nodes
    permutation[num_places:] = order.head
    places = np.empty(size + 1, int)
    places[permutation] = np.arange(permutation.size)
    neighbours = np.full((num_rounds, count, width), num_places)
    for index, each in enumerate(order.rounds):
        inside = np.arange(width) < degrees[index][:, None]
        neighbours[index, : each.nodes.size][inside] = places[each.neighbours.indices]
    neighbours = neighbours.reshape(num_places, width)
    itself = np.arange(num_places)
    off = num_places + np.arange(num_places * width)
    keys = np.concatenate([itself * num_places + itself,
                           (itself[:, None] * num_places + neighbours).ravel()])  # fmt: skip
    real = np.concatenate([itself < num_places, neighbours.ravel() < num_places])
    order_of_keys = np.argsort(keys[real])
    every = np.concatenate([itself, off])[real]
    slots = Slots(
        keys[real][order_of_keys], every[order_of_keys], num_places, num_places * (1 + width)
    )
    first, second = np.triu_indices(width)
    pairs = slots.of(neighbours[:, first], neighbours[:, second])
    structure = Elimination(
        num_rounds, width, *(jnp.asarray(table, jnp.int32)
                             for table in (permutation, places[:-1], neighbours, pairs))
    )  # fmt: skip
    return structure, slots
