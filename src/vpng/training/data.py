"""Where batches come from."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
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

    An epoch has floor(n / B) batches; the data left over change with the shuffle.

    Attributes:
        num_data: n.
        batch_size: B; None for all data in every step.
    """

    num_data: int = eqx.field(static=True)
    batch_size: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        if self.batch_size is not None:
            positive_integer("batch_size", self.batch_size)
            if self.batch_size > self.num_data:
                raise expected("batch_size", f"at most the {self.num_data} data", self.batch_size)

    @property
    def per_epoch(self) -> int:
        """Batches in an epoch."""
        return 1 if self.batch_size is None else self.num_data // self.batch_size

    def init(self) -> Int[Array, " n"]:
        """The order of the data before the first shuffle; of no use if there are no batches."""
        return jnp.arange(1 if self.batch_size is None else self.num_data, dtype=jnp.int32)

    def next(
        self,
        data: AbstractData,
        rng_key: PRNGKeyArray,
        step: Int[Array, ""],
        order: Int[Array, " n"],
    ) -> tuple[PyTree, Int[Array, " n"]]:
        """The batch of `step`, and the order to carry on with."""
        if self.batch_size is None:
            return data.everything(), order
        epoch, position = step // self.per_epoch, step % self.per_epoch
        # Apart from the keys of the steps, which fold their number into the same key.
        key = jax.random.fold_in(jax.random.fold_in(rng_key, 2**32 - 2), epoch)
        shuffled = lambda: jax.random.permutation(key, self.num_data).astype(order.dtype)
        order = jax.lax.cond(position == 0, shuffled, lambda: order)
        chosen = jax.lax.dynamic_slice_in_dim(order, position * self.batch_size, self.batch_size)
        return data.take(chosen), order


def as_data(data: PyTree | AbstractData) -> AbstractData:
    """`data` itself if it knows how to make batches, else its arrays in memory."""
    return data if isinstance(data, AbstractData) else InMemory.create(data)
