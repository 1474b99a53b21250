"""Where the arguments of model and guide come from: the same in every step, or a batch for each."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree
from numpyro.infer import RenyiELBO, TraceEnum_ELBO
from numpyro.infer.elbo import ELBO

from vpng.errors import InputError, expected
from vpng.numpyro.loader import Arguments, BatchesFrom, Loader
from vpng.numpyro.rows import RowsOfBatch

Called = tuple[tuple, dict[str, Any]]

MOST_BATCHES = 64
"""Of one compiled chunk."""

MOST_BYTES = 2**25
"""Of the batches of a chunk, unless a single one has more."""


class AbstractSource(ABC):
    """The arguments of a run; inputs are what one compiled chunk of its steps is given of them."""

    most_steps: int | None
    """Of one chunk; None if it does not matter."""

    per_epoch: int | None
    """Batches of an epoch; None if there are none."""

    @abstractmethod
    def first(self) -> PyTree:
        """What the first step is given."""

    @abstractmethod
    def inputs(self, step: int, length: int) -> PyTree:
        """What so many steps from `step` on are given."""

    @abstractmethod
    def one_of(self, inputs: PyTree, position: Int[Array, ""]) -> PyTree:
        """What one step of a chunk is given."""

    @abstractmethod
    def called(self, one: PyTree) -> Called:
        """The arguments of model and guide in a step."""

    @abstractmethod
    def counted(self, one: PyTree) -> AbstractContextManager:
        """A handler in which model and guide count the data of a step for all data."""


class Whole(AbstractSource):
    """The same arguments in every step, which is given the arrays: any values of them will do.

    Attributes:
        rest: the arguments, with None for arrays.
    """

    most_steps = None
    per_epoch = None

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        is_array = lambda leaf: isinstance(leaf, jax.Array)
        self._arrays, self.rest = eqx.partition((args, kwargs), is_array)

    def first(self) -> PyTree:
        return self._arrays

    def inputs(self, step: int, length: int) -> PyTree:
        return self._arrays

    def one_of(self, inputs: PyTree, position: Int[Array, ""]) -> PyTree:
        return inputs

    def called(self, one: PyTree) -> Called:
        return eqx.combine(one, self.rest)

    def counted(self, one: PyTree) -> AbstractContextManager:
        return nullcontext()

    def held(self) -> "Held":
        """For a model that reads values."""
        return Held(*self.called(self._arrays))


class Held(AbstractSource):
    """The same arguments in every step, whose values model and guide may read."""

    most_steps = None
    per_epoch = None

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        self._called = args, kwargs

    def first(self) -> None:
        return None

    def inputs(self, step: int, length: int) -> None:
        return None

    def one_of(self, inputs: None, position: Int[Array, ""]) -> None:
        return None

    def called(self, one: None) -> Called:
        return self._called

    def counted(self, one: None) -> AbstractContextManager:
        return nullcontext()


class InBatches(AbstractSource):
    """A batch for every step, before arguments that are always the same."""

    def __init__(self, loader: Loader, args: tuple, kwargs: dict[str, Any]) -> None:
        self.loader, self.per_epoch = loader, loader.per_epoch
        self._args, self._kwargs = args, kwargs
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(loader.first))
        self.most_steps = self._kept = min(MOST_BATCHES, max(1, MOST_BYTES // size))
        self._next, self._batches = 0, iter(())

    def first(self) -> Arguments:
        return self.loader.first

    def inputs(self, step: int, length: int) -> Arguments:
        batches = list(itertools.islice(self._from(step), length))
        self._next = step + length
        # The last chunk may be shorter, and its program is the same.
        batches += batches[-1:] * (self._kept - length)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)

    def one_of(self, inputs: Arguments, position: Int[Array, ""]) -> Arguments:
        return jax.tree.map(lambda leaf: leaf[position], inputs)

    def called(self, one: Arguments) -> Called:
        return (*one.args, *self._args), {**one.kwargs, **self._kwargs}

    def counted(self, one: Arguments) -> RowsOfBatch:
        loader = self.loader
        count = None if loader.all_equal else jnp.asarray(one.count)
        return RowsOfBatch(loader.num_rows, loader.num_data, loader.batches.plate, count)

    def _from(self, step: int) -> Iterator[Arguments]:
        if step != self._next or step == 0:
            self._batches = self.loader.after(step)
        return self._batches


def source_of(args: tuple, kwargs: dict[str, Any], loss: ELBO, *, on_mesh: bool) -> AbstractSource:
    """Of the arguments that a run is called with."""
    if not args or not isinstance(args[0], BatchesFrom):
        return Held(args, kwargs) if on_mesh else Whole(args, kwargs)
    if on_mesh:
        raise expected("mesh", "None, since batches are loaded by one process", "a mesh")
    loader = Loader.of(args[0])
    if isinstance(loss, RenyiELBO | TraceEnum_ELBO) and not loader.all_equal:
        raise InputError(
            f"drop_short: expected True, since {type(loss).__name__} wants batches that are all as "
            "long, got False. Write BatchesFrom(loader, drop_short=True)."
        )
    return InBatches(loader, args[1:], kwargs)
