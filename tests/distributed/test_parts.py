"""The parts of a distributed run that need one device alone, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import InputError, fit, optimizers
from vpng.distributed import Layout, Sharded, agree, from_first, join, make_mesh
from vpng.distributed.division import Task, _beginning, balanced, divided
from vpng.distributed.faults import LostProcessError, stopping_if_lost
from vpng.distributed.orthogonal import from_reflections, reflections
from vpng.distributed.processes import agreed
from vpng.distributed.symmetric import gram, mirrored, pack, unpack
from vpng.problem import Parameters
from vpng.problems import LinearLatent
from vpng.training import Batches, Blocks
from vpng.training.blocks import block_bounds, blocks_for, own_blocks


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_a_triangle_fits_half_a_square(size):
    matrix = np.random.default_rng(size).normal(size=(size, size)).astype(np.float32)

    @jax.jit
    def there_and_back(matrix):
        packed = pack(matrix)
        assert packed.size <= (size + 1) * (size + 2) / 2
        return unpack(packed, size), mirrored(unpack(packed, size))

    triangle, whole = map(np.asarray, there_and_back(matrix))
    np.testing.assert_array_equal(triangle, np.triu(matrix))
    np.testing.assert_array_equal(whole, whole.T)
    np.testing.assert_array_equal(np.diagonal(whole), np.diagonal(matrix))


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_an_orthogonal_matrix_fits_half_a_square(size, x64):
    matrix = np.linalg.qr(np.random.default_rng(size).normal(size=(size, size)))[0]

    @jax.jit
    def there_and_back(matrix):
        packed = reflections(matrix)
        assert packed.size <= (size + 1) * (size + 2) / 2
        return from_reflections(packed, size)

    again = np.asarray(there_and_back(matrix))
    np.testing.assert_allclose(np.abs(again.T @ matrix), np.eye(size), atol=1e-14)


def test_gram_sums_over_all_leading_axes():
    vectors = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    expected = np.einsum("abi,abj->ij", vectors, vectors)
    np.testing.assert_allclose(jax.jit(gram)(vectors), expected, rtol=1e-5, atol=1e-6)


def test_work_is_shared_evenly():
    shares = balanced([5.0, 1.0, 4.0, 2.0, 3.0], 3)
    assert sorted(task for share in shares for task in share) == list(range(5))
    costs = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert max(sum(costs[i] for i in share) for share in shares) == 5.0
    assert balanced([1.0], 8) == [[0]]


@pytest.mark.parametrize(
    ("lengths", "begin"),
    [
        ([5, 5, 5, 5], 5),  # as long as each other: all at once
        ([400], 0),  # one alone: in pieces
        ([300, 60, 60, 60], 60),  # one that is longer: what it has more goes in pieces
    ],
)
def test_shares_travel_the_cheapest_way(lengths, begin):
    assert _beginning(lengths, 4) == begin


def test_tasks_on_one_device_are_done_in_turn():
    tasks = [Task(lambda x, k=k: k * x, (jnp.ones(2),), 1.0) for k in range(3)]
    np.testing.assert_array_equal(np.stack(divided(tasks)), [[0, 0], [1, 1], [2, 2]])


def test_batches_in_blocks_visit_every_datum_once_an_epoch():
    """14 data in 4 blocks of 4, 4, 3, 3: an epoch has 3 batches with a datum of each block."""
    data, batches = Blocks.create(np.arange(14.0), 4), Batches(14, 4, 4)
    order, epochs = batches.init(), []
    bounds = block_bounds(14, 4)
    np.testing.assert_array_equal(bounds, [0, 4, 8, 11, 14])
    assert batches.per_epoch == 3
    following = jax.jit(batches.next)
    for epoch in range(8):
        seen = []
        for position in range(3):
            step = np.int32(3 * epoch + position)
            batch, order = following(data, jax.random.key(0), step, order)
            blocks = np.searchsorted(bounds, np.asarray(batch), side="right") - 1
            np.testing.assert_array_equal(blocks, [0, 1, 2, 3])
            seen.extend(np.asarray(batch).tolist())
        assert len(set(seen)) == 12
        epochs.append(tuple(seen))
    assert len(set(epochs)) == 8
    assert {value for seen in epochs for value in seen} == set(range(14))
    np.testing.assert_array_equal(data.everything(), np.arange(14.0))
    single, _ = jax.jit(Batches(14, 4).next)(
        Blocks.create(np.arange(14.0), 1), jax.random.key(0), np.int32(0), Batches(14, 4).init()
    )
    assert len(set(np.asarray(single).tolist())) == 4


def test_a_process_reads_the_rows_of_its_own_devices():
    layout, asked = Layout(make_mesh()), []

    def read(rows):
        asked.extend(rows.tolist())
        return np.arange(10.0)[rows]

    data = Blocks.of_process(layout, read, 10, 4)
    assert asked == list(range(10))
    assert own_blocks(layout, 4) == [0, 1, 2, 3]
    np.testing.assert_array_equal(data.everything(), Blocks.create(np.arange(10.0), 4).everything())
    assert blocks_for(layout, 600) == 8
    assert blocks_for(layout, 100) == 4


def test_parameters_are_divided_where_the_devices_divide_them():
    sharded = Sharded(min_size=10)
    assert sharded.axis((4, 12), 4) == 1
    assert sharded.axis((16, 3), 4) == 0
    assert sharded.axis((5, 7), 4) is None
    assert sharded.axis((4,), 4) is None


def test_one_process_agrees_with_itself():
    agree({"anything": 1})
    assert from_first(lambda: {"a": 1}) == {"a": 1}
    assert agreed("b", ("a", "b")) == "b"
    assert agreed(None, ("a", "b")) is None


def test_errors_of_one_process_are_its_own():
    with pytest.raises(ValueError, match="Gloo"), stopping_if_lost():
        raise ValueError("Gloo all-reduce failed")


def test_a_lost_process_is_named(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr("atexit.register", lambda function: None)
    with pytest.raises(LostProcessError, match=r"process 0 of 3: .* resume"), stopping_if_lost():
        raise ValueError("Gloo all-reduce failed: Connection reset by peer")
    with pytest.raises(ValueError, match="shapes"), stopping_if_lost():
        raise ValueError("shapes do not match")


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("coordinator", ("alpha", 2, 0)),
        ("coordinator", ("alpha:1", None, 0)),
        ("coordinator", (None, 2, 0)),
        ("num_processes", ("alpha:1", 0, 0)),
        ("process_id", ("alpha:1", 2, 2)),
        ("process_id", ("alpha:1", 2, -1)),
    ],
)
def test_processes_that_cannot_be(argument, given):
    with pytest.raises(InputError, match=rf"^{argument}: expected .*, got "):
        join(*given)


def run(data, **options):
    problem = LinearLatent(num_data=10)
    parameters = Parameters(*jax.device_put((np.float32(0.1), np.float32(0.5))))
    fit(problem, parameters, data, optimizers.gradient(0.1), 2, jax.random.key(0), **options)


@pytest.mark.parametrize(
    ("argument", "data", "options"),
    [
        ("mesh", np.zeros(10), {"mesh": "all"}),
        ("batch_size", Blocks.create(np.zeros(10), 2), {"batch_size": 5}),
    ],
)
def test_bad_meshes_and_batches(argument, data, options):
    with pytest.raises(InputError, match=rf"^{argument}: expected .*, got "):
        run(data, progress=False, **options)


def test_bad_blocks():
    with pytest.raises(InputError, match=r"^num_blocks: expected at most the 3 data, got 4"):
        Blocks.create(np.zeros(3), 4)
    with pytest.raises(InputError, match=r"^read: expected 6 rows, got 5"):
        Blocks.of_process(Layout(make_mesh()), lambda rows: np.zeros(5), 6, 2)
    with pytest.raises(InputError, match=r"^parameters: expected a placement"):
        Layout(make_mesh(), parameters=True)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"^devices: expected at least one"):
        make_mesh([])
