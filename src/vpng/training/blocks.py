"""Data in blocks of rows, so that every process reads and holds only its own."""

from collections.abc import Callable
from itertools import pairwise
from math import gcd

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from vpng.checks import data_tree, positive_integer
from vpng.distributed.layout import Layout
from vpng.errors import expected
from vpng.training.data import AbstractData

NUM_BLOCKS = 8


class Blocks(AbstractData):
    """n data in S blocks of neighbouring rows, whose lengths differ by one at most.

    Batches have as many data of every block, see `Batches`. The blocks do not depend on the number
    of devices, so that any number of them that divides S sees the same batches.

    Attributes:
        arrays: with the axes [block, row, ...]; a shorter block is filled up with zeros.
        num_data: n.
    """

    arrays: PyTree
    num_data: int = eqx.field(static=True)

    @classmethod
    def create(cls, data: PyTree, num_blocks: int = NUM_BLOCKS) -> "Blocks":
        """All data, held here, in blocks."""
        count = data_tree("data", data)
        bounds = block_bounds(count, num_blocks)
        blocks = _in_blocks(data, bounds, -(-count // num_blocks))
        return cls(jax.tree.map(jnp.asarray, blocks), count)

    @classmethod
    def of_process(
        cls,
        layout: Layout,
        read: Callable[[Int[np.ndarray, " r"]], PyTree],
        num_data: int,
        num_blocks: int = NUM_BLOCKS,
    ) -> "Blocks":
        """The blocks that belong to this process's devices, read here and nowhere else.

        Args:
            layout: the mesh of all processes.
            read: numbers of rows, in order -> a pytree of arrays with those rows.
            num_data: n, over all processes.
            num_blocks: S, a multiple of the number of devices.
        """
        check_blocks(layout, num_blocks)
        bounds = block_bounds(num_data, num_blocks)
        sharding = layout.divided_along(0)
        own = own_blocks(layout, num_blocks)
        rows = np.concatenate([np.arange(bounds[b], bounds[b + 1]) for b in own])
        data = read(rows)
        if data_tree("data", data) != len(rows):
            raise expected("read", f"{len(rows)} rows", data_tree("data", data))
        local = np.concatenate([[0], np.cumsum([bounds[b + 1] - bounds[b] for b in own])])
        blocks = _in_blocks(data, local, -(-num_data // num_blocks))
        place = lambda leaf: jax.make_array_from_process_local_data(
            sharding, leaf, (num_blocks, *leaf.shape[1:])
        )
        return cls(jax.tree.map(place, blocks), num_data)

    def __len__(self) -> int:
        return self.num_data

    @property
    def num_blocks(self) -> int:
        return jax.tree.leaves(self.arrays)[0].shape[0]

    def take(self, indices: Int[Array, "S b"] | Int[Array, " b"]) -> PyTree:
        """The batch with these rows of every block, block by block."""
        of_block = indices.reshape(self.num_blocks, -1)

        def rows(leaf: Array) -> Array:
            chosen = jax.vmap(lambda block, places: block[places])(leaf, of_block)
            return chosen.reshape(-1, *leaf.shape[2:])

        return jax.tree.map(rows, self.arrays)

    def everything(self) -> PyTree:
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.arrays)
        short = -self.num_data % self.num_blocks
        if short == 0:
            return flat
        longest = jax.tree.leaves(self.arrays)[0].shape[1]
        sizes = np.diff(block_bounds(self.num_data, self.num_blocks))
        places = [np.arange(size) + longest * block for block, size in enumerate(sizes)]
        return jax.tree.map(lambda leaf: leaf[np.concatenate(places)], flat)

    def few(self) -> PyTree:
        count = min(self.num_data, 2)
        return jax.tree.map(
            lambda leaf: jnp.zeros((count, *leaf.shape[2:]), leaf.dtype), self.arrays
        )


def block_bounds(num_data: int, num_blocks: int) -> Int[np.ndarray, " S_plus_1"]:
    """Where each block begins, and n: the first n mod S blocks have one datum more."""
    positive_integer("num_blocks", num_blocks)
    if num_blocks > num_data:
        raise expected("num_blocks", f"at most the {num_data} data", num_blocks)
    sizes = np.full(num_blocks, num_data // num_blocks)
    sizes[: num_data % num_blocks] += 1
    return np.concatenate([[0], np.cumsum(sizes)])


def own_blocks(layout: Layout, num_blocks: int) -> list[int]:
    """The blocks on this process's devices."""
    placed = layout.divided_along(0).addressable_devices_indices_map((num_blocks,))
    return sorted({b for index in placed.values() if index for b in range(num_blocks)[index[0]]})


def blocks_for(layout: Layout, batch_size: int) -> int:
    """A number of blocks that divides the batch, the same for 1, 2, 4 and 8 devices if it can be.

    Raises:
        InputError: if the devices do not divide the batch.
    """
    count = gcd(batch_size, NUM_BLOCKS)
    if count % layout.num_devices == 0:
        return count
    if batch_size % layout.num_devices:
        wanted = f"a multiple of the {layout.num_devices} devices"
        raise expected("batch_size", wanted, batch_size)
    return layout.num_devices


def check_blocks(layout: Layout, num_blocks: int) -> None:
    """Refuse blocks that cannot be dealt out evenly."""
    if num_blocks % layout.num_devices:
        wanted = f"a multiple of the {layout.num_devices} devices"
        raise expected("num_blocks", wanted, num_blocks)


def _in_blocks(data: PyTree, bounds: Int[np.ndarray, " k"], longest: int) -> PyTree:
    """Arrays [block, row, ...] of the rows between the bounds."""

    def divide(leaf: Array) -> np.ndarray:
        rows = np.asarray(leaf)
        shape = (len(bounds) - 1, longest, *rows.shape[1:])
        divided = np.zeros(shape, jax.dtypes.canonicalize_dtype(rows.dtype))
        for block, (start, stop) in enumerate(pairwise(bounds)):
            divided[block, : stop - start] = rows[start:stop]
        return divided

    return jax.tree.map(divide, data)
