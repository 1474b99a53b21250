"""Data on a mesh: the rows of every batch divided among the devices."""

import equinox as eqx
import jax
from jaxtyping import Array, Int, PyTree

from vpng.distributed.layout import Layout
from vpng.training.blocks import Blocks, check_blocks
from vpng.training.data import AbstractData


class Placed(AbstractData):
    """`data` on the mesh of `layout`."""

    data: AbstractData
    layout: Layout = eqx.field(static=True)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def num_blocks(self) -> int:
        return self.data.num_blocks

    def take(self, indices: Int[Array, "..."]) -> PyTree:
        return self.layout.divide_rows(self.data.take(indices))

    def everything(self) -> PyTree:
        return self.layout.divide_rows(self.data.everything())

    def few(self) -> PyTree:
        return self.data.few()


def placed(data: AbstractData, layout: Layout | None) -> AbstractData:
    """`data` itself on one device; on a mesh `Blocks` divided, and anything else copied."""
    if layout is None:
        return data
    sharding = layout.everywhere
    if isinstance(data, Blocks):
        check_blocks(layout, data.num_blocks)
        sharding = layout.divided_along(0)
    return Placed(layout.put(data, jax.tree.map(lambda _: sharding, data)), layout)
