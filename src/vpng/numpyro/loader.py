"""Batches from outside: whatever can be iterated over, checked and made equal in shape."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from vpng.checks import positive_integer
from vpng.errors import expected


@dataclass(frozen=True)
class Epochs:
    """So many times through all batches, in the place of a number of steps."""

    count: int

    def __post_init__(self) -> None:
        positive_integer("count", self.count)


@dataclass(frozen=True)
class BatchesFrom:
    """Batches for `SVI.run`, in the place of the first arguments of model and guide.

    A tuple or a list in the loader holds positional arguments, a dictionary keyword arguments, and
    anything else is the only argument. All their arrays have the rows of the batch along the first
    axis. The rows stand for all data: what model and guide sample in the plate of the rows counts
    N / B times. A batch with fewer rows than the first is filled up with copies that count nothing,
    and its own rows count N divided by their number.

    Attributes:
        loader: something to iterate over once in every epoch, or a function that makes it of the
            number of the epoch, from 0 on; a run that is resumed goes on with the same batches if
            the loader always has the same in the same epoch.
        num_data: N; counted by going through the loader once if it is left out.
        drop_short: whether a batch with fewer rows than the first is left out instead.
        plate: the name of the plate of the rows; unless given, the plate that holds observations
            and is as long as the first batch.
    """

    loader: Iterable[PyTree] | Callable[[int], Iterable[PyTree]]
    num_data: int | None = None
    drop_short: bool = False
    plate: str | None = None

    def __post_init__(self) -> None:
        once = isinstance(self.loader, Iterator)
        if once or not (callable(self.loader) or isinstance(self.loader, Iterable)):
            raise expected(
                "loader",
                "something to iterate over again and again, or a function of the epoch",
                "an iterator, which has an end" if once else type(self.loader).__name__,
            )
        if self.num_data is not None:
            positive_integer("num_data", self.num_data)

    def epoch(self, number: int) -> Iterator[PyTree]:
        """The batches of one epoch as they come."""
        made = self.loader(number) if callable(self.loader) else self.loader
        return iter(made)


class Arguments(NamedTuple):
    """One batch.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        count: of its rows; those behind are copies.
    """

    args: tuple
    kwargs: dict[str, Any]
    count: np.int32


@dataclass(frozen=True)
class Loader:
    """Batches of which the sizes are known.

    Attributes:
        batches: where they come from.
        first: the first one.
        num_data: N.
        per_epoch: number of batches in an epoch.
    """

    batches: BatchesFrom
    first: Arguments
    num_data: int
    per_epoch: int

    @classmethod
    def of(cls, batches: BatchesFrom) -> "Loader":
        """Look at the first batch, and at all of them if that is needed to count them."""
        begun = list(itertools.islice(batches.epoch(0), 1))
        if not begun:
            raise expected("loader", "at least one batch", "none")
        first = _arguments(begun[0], "batch 0 of epoch 0")
        loader = cls(batches, first, batches.num_data or 0, 0)
        length = getattr(batches.loader, "__len__", None)
        if batches.num_data is None or batches.drop_short or length is None:
            counts = [int(_arguments(each, "epoch 0").count) for each in batches.epoch(0)]
            rows = sum(counts) if batches.num_data is None else batches.num_data
            kept = counts.count(loader.num_rows) if batches.drop_short else len(counts)
            return replace(loader, num_data=rows, per_epoch=kept)
        return replace(loader, per_epoch=length())

    @property
    def num_rows(self) -> int:
        """B."""
        return int(self.first.count)

    @property
    def all_equal(self) -> bool:
        """Whether all batches have B rows."""
        return self.batches.drop_short or self.num_data % self.num_rows == 0

    def epoch(self, number: int) -> Iterator[Arguments]:
        """The batches of one epoch, all of the same shapes."""
        for position, batch in enumerate(self.batches.epoch(number)):
            where = f"batch {position} of epoch {number}"
            found = _arguments(batch, where)
            if found.count < self.num_rows and self.batches.drop_short:
                continue
            if found.count < self.num_rows and self.all_equal:
                wanted = f"{self.num_rows} rows as in the first, of which {self.num_data} data are"
                raise expected(f"loader, {where}", f"{wanted} a multiple", found.count)
            yield _filled_up(found, self.first, where)

    def after(self, step: int) -> Iterator[Arguments]:
        """The batches of all steps that come after so many."""
        epoch, done = divmod(step, self.per_epoch)
        for number in itertools.count(epoch):
            some = False
            for position, batch in enumerate(self.epoch(number)):
                some = True
                if number > epoch or position >= done:
                    yield batch
            if not some:
                raise expected("loader", "batches in every epoch", f"none in epoch {number}")


def _arguments(batch: PyTree, where: str) -> Arguments:
    if isinstance(batch, dict):
        args, kwargs = (), jax.tree.map(np.asarray, batch)
    else:
        listed = batch if isinstance(batch, tuple | list) else (batch,)
        args, kwargs = tuple(jax.tree.map(np.asarray, each) for each in listed), {}
    counts = {np.shape(leaf)[:1] for leaf in jax.tree.leaves((args, kwargs))}
    if len(counts) != 1 or counts & {(), (0,)}:
        found = sorted(np.shape(leaf) for leaf in jax.tree.leaves((args, kwargs)))
        raise expected(f"loader, {where}", "arrays with the same rows along the first axis", found)
    [(count,)] = counts
    return Arguments(args, kwargs, np.int32(count))


def _filled_up(batch: Arguments, first: Arguments, where: str) -> Arguments:
    """With copies of its first row, to as many rows as the first batch has."""
    kind = lambda leaf: (leaf.dtype, leaf.shape[1:])
    kinds = lambda each: jax.tree.map(kind, (each.args, each.kwargs))
    if kinds(batch) != kinds(first):
        wanted = f"arrays as in the first batch, {_described(first)}"
        raise expected(f"loader, {where}", wanted, _described(batch))
    missing = int(first.count - batch.count)
    if missing < 0:
        wanted = f"at most the {first.count} rows of the first batch"
        raise expected(f"loader, {where}", wanted, batch.count)
    if not missing:
        return batch
    longer = lambda leaf: np.concatenate([leaf, np.repeat(leaf[:1], missing, axis=0)])
    args, kwargs = jax.tree.map(longer, (batch.args, batch.kwargs))
    return Arguments(args, kwargs, batch.count)


def _described(batch: Arguments) -> str:
    leaves = jax.tree.leaves((batch.args, batch.kwargs))
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves)
