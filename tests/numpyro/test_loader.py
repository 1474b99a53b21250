"""Batches from outside: counted, checked and made equal in shape."""

import itertools

import numpy as np
import pytest

from vpng.errors import InputError
from vpng.numpyro.loader import BatchesFrom, Epochs, Loader

ROWS = np.arange(7.0)


class OfUnknownLength:
    """A loader that does not say how many batches it has."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return (batch for batch in parts(self.size))


def parts(size):
    return [(ROWS[i : i + size], 2 * ROWS[i : i + size]) for i in range(0, len(ROWS), size)]


def first_column(batches):
    return [batch.args[0].tolist() for batch in batches]


@pytest.mark.parametrize(
    "source",
    [parts(3), OfUnknownLength(3), lambda epoch: iter(parts(3))],
    ids=["list", "unknown length", "function"],
)
@pytest.mark.parametrize("num_data", [None, 7])
def test_the_last_short_batch_is_filled_up_with_copies(source, num_data):
    loader = Loader.of(BatchesFrom(source, num_data))
    assert (loader.num_data, loader.num_rows, loader.per_epoch) == (7, 3, 3)
    batches = list(loader.epoch(0))
    assert first_column(batches) == [[0, 1, 2], [3, 4, 5], [6, 6, 6]]
    assert [int(batch.count) for batch in batches] == [3, 3, 1]


@pytest.mark.parametrize("num_data", [None, 7])
def test_the_last_short_batch_is_left_out(num_data):
    loader = Loader.of(BatchesFrom(parts(3), num_data, drop_short=True))
    # What is left out is among the data, and in another batch of an epoch that is shuffled.
    assert (loader.num_data, loader.per_epoch) == (7, 2)
    assert first_column(loader.epoch(0)) == [[0, 1, 2], [3, 4, 5]]


def test_steps_go_on_where_a_run_was_stopped():
    epochs = []

    def shuffled(epoch):
        epochs.append(epoch)
        return [(ROWS[2 * i : 2 * i + 2] + 10 * epoch,) for i in range(3)]

    loader = Loader.of(BatchesFrom(shuffled, 6))
    whole = first_column(itertools.islice(loader.after(0), 9))
    assert whole[3] == [10.0, 11.0]
    for step in range(8):
        assert first_column(itertools.islice(loader.after(step), 9 - step)) == whole[step:]
    del epochs[:]
    next(loader.after(7))
    assert epochs == [2]


def test_what_a_batch_holds_is_what_model_and_guide_get():
    one = lambda batch: next(Loader.of(BatchesFrom([batch])).epoch(0))
    assert len(one([ROWS, ROWS]).args) == 2
    assert len(one(ROWS).args) == 1
    named = one({"x": ROWS, "more": {"y": ROWS}})
    assert named.args == ()
    assert set(named.kwargs) == {"x", "more"}


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one batch, got none"),
        ([(ROWS, ROWS[:3])], "batch 0 of epoch 0: expected arrays with the same rows"),
        ([(ROWS, 1.0)], "batch 0 of epoch 0: expected arrays with the same rows"),
        ([ROWS[:0]], "same rows"),
        ([ROWS[:2], ROWS[:3]], "batch 1 of epoch 0: expected at most the 2 rows"),
        ([ROWS, ROWS.astype(np.int32)], r"batch 1 of .* float64\[7\], got int32\[7\]"),
        ([ROWS[:, None], np.ones((7, 2))], r"float64\[7, 1\], got float64\[7, 2\]"),
        ([(ROWS,), (ROWS, ROWS)], "batch 1 of epoch 0"),
        ([{"x": ROWS}, {"y": ROWS}], "batch 1 of epoch 0"),
    ],
)
def test_batches_that_do_not_fit_are_named(batches, message):
    with pytest.raises(InputError, match=message):
        list(Loader.of(BatchesFrom(batches, 7)).epoch(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchesFrom(iter([ROWS])), "again and again.*an iterator, which has an end"),
        (lambda: BatchesFrom(3), "loader: expected .*int"),
        (lambda: BatchesFrom([ROWS], 0), "num_data"),
        (lambda: Epochs(0), "count"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_an_epoch_without_batches_ends_the_run_with_a_word():
    loader = Loader.of(BatchesFrom(lambda epoch: [ROWS] if epoch < 2 else []))
    with pytest.raises(InputError, match="none in epoch 2"):
        list(itertools.islice(loader.after(0), 5))
