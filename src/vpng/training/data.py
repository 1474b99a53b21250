"""Where batches come from."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from vpng.checks import data_tree, positive_integer
from vpng.errors import expected


class AbstractData(eqx.Module):
    """Data that can be indexed inside a compiled loop.

    A pytree of arrays becomes `InMemory`. Write a subclass for another layout, for instance sparse
    rows that are made dense batch by batch.
    """

    @abstractmethod
    def __len__(self) -> int:
        """The number of data."""

    @abstractmethod
    def take(self, indices: Int[Array, " B"]) -> PyTree:
        """The batch with these data."""

    @abstractmethod
    def everything(self) -> PyTree:
        """All data as one batch."""

    def few(self) -> PyTree:
        """A batch of at most two data, for the shapes."""
        return self.take(jnp.arange(min(len(self), 2)))

    @property
    def num_blocks(self) -> int:
        """Into how many parts the data are divided, see `Blocks`."""
        return 1


class InMemory(AbstractData):
    """Arrays with the data along the first axis of each."""

    arrays: PyTree

    @classmethod
    def create(cls, data: PyTree) -> "InMemory":
        """Check the arrays and put them on the device."""
        data_tree("data", data)
        return cls(jax.tree.map(jnp.asarray, data))

    def __len__(self) -> int:
        return jax.tree.leaves(self.arrays)[0].shape[0]

    def take(self, indices: Int[Array, " B"]) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[indices], self.arrays)

    def everything(self) -> PyTree:
        return self.arrays


class Batches(eqx.Module):
    """How a run walks through its data: all at once, or in batches shuffled anew every epoch.

    An epoch has floor(n / B) batches; the data left over change with the shuffle. Data in S blocks
    are shuffled each block for itself, and a batch has B / S data of every block: whoever holds
    some of the blocks can make its part of every batch.

    Attributes:
        num_data: n.
        batch_size: B; None for all data in every step.
        num_blocks: S.
    """

    num_data: int = eqx.field(static=True)
    batch_size: int | None = eqx.field(default=None, static=True)
    num_blocks: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        if self.batch_size is not None:
            positive_integer("batch_size", self.batch_size)
            if self.batch_size > self.num_data:
                raise expected("batch_size", f"at most the {self.num_data} data", self.batch_size)
            if self.batch_size % self.num_blocks:
                wanted = f"a multiple of the data's {self.num_blocks} blocks"
                raise expected("batch_size", wanted, self.batch_size)

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        if self.batch_size is None:
            return 1
        # Of the smallest block: an epoch visits no datum twice.
        return self.num_data // self.num_blocks // (self.batch_size // self.num_blocks)

    def init(self) -> Int[Array, " n"] | Int[Array, "S m"]:
        """The order of the data before the first shuffle; of no use if there are no batches."""
        if self.batch_size is None or self.num_blocks == 1:
            return jnp.arange(1 if self.batch_size is None else self.num_data, dtype=jnp.int32)
        longest = -(-self.num_data // self.num_blocks)
        return jnp.tile(jnp.arange(longest, dtype=jnp.int32), (self.num_blocks, 1))

    def next(
        self,
        data: AbstractData,
        rng_key: PRNGKeyArray,
        step: Int[Array, ""],
        order: Int[Array, " n"] | Int[Array, "S m"],
    ) -> tuple[PyTree, Int[Array, " n"] | Int[Array, "S m"]]:
        """The batch of `step`, and the order to carry on with."""
        if self.batch_size is None:
            return data.everything(), order
        epoch, position = step // self.per_epoch, step % self.per_epoch
        # Apart from the keys of the steps, which fold their number into the same key.
        key = jax.random.fold_in(jax.random.fold_in(rng_key, 2**32 - 2), epoch)
        order = jax.lax.cond(
            position == 0, lambda: self._shuffled(key).astype(order.dtype), lambda: order
        )
        size = self.batch_size // self.num_blocks
        chosen = jax.lax.dynamic_slice_in_dim(order, position * size, size, axis=-1)
        return data.take(chosen), order

    def _shuffled(self, rng_key: PRNGKeyArray) -> Int[Array, " n"] | Int[Array, "S m"]:
        """A new order; in a block that is shorter than the longest its missing datum comes last."""
        if self.num_blocks == 1:
            return jax.random.permutation(rng_key, self.num_data)
        longest = -(-self.num_data // self.num_blocks)
        keys = jax.vmap(lambda block: jax.random.fold_in(rng_key, block))(
            jnp.arange(self.num_blocks)
        )
        bits = jax.vmap(lambda key: jax.random.bits(key, (longest,), jnp.uint32))(keys)
        short = self.num_data % self.num_blocks
        is_short = (jnp.arange(self.num_blocks) >= short) & (short > 0)
        last = jnp.where(is_short, np.uint32(np.iinfo(np.uint32).max), bits[:, -1])
        return jnp.argsort(bits.at[:, -1].set(last), axis=1, stable=True)


def as_data(data: PyTree | AbstractData) -> AbstractData:
    """`data` itself if it knows how to make batches, else its arrays in memory."""
    return data if isinstance(data, AbstractData) else InMemory.create(data)
