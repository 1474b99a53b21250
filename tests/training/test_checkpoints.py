"""Checkpoints: exact resume, damage, other runs, folders that cannot be written to."""

import errno
import json
import os
import shutil
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vpng import ELBO, InputError, Loop, Parameters, optimizers
from vpng.problems import LinearLatent
from vpng.run.checkpoint import CheckpointFolder
from vpng.run.history import History, Record
from vpng.run.identity import RunIdentity, host_array
from vpng.run.logbook import Logbook
from vpng.run.stopping import Converged
from vpng.storage.files import synchronise
from vpng.training import Checkpoints, EverySeconds, EverySteps, StopReason, fit

NUM_DATA = 10


def setting(dtype=jnp.float32):
    data = jnp.asarray(np.random.default_rng(0).normal(size=NUM_DATA), dtype)
    problem = LinearLatent(num_data=NUM_DATA)
    return problem, Parameters(jnp.asarray(0.1, dtype), jnp.asarray(0.5, dtype)), data


def adam(rate=0.05):
    return optimizers.gradient(rate, rule=optax.scale_by_adam())


@pytest.fixture(scope="module")
def loop():
    problem, parameters, data = setting()
    return Loop(problem, parameters, data, adam(), batch_size=3, record_every=5)


def run(loop, num_steps, folder=None, resume=False, every=5, **options):
    checkpoints = None if folder is None else Checkpoints(folder, every=EverySteps(every))
    state = loop.init(setting()[1], jax.random.key(7))
    options = {"progress": False, "checkpoints": checkpoints, "resume": resume, **options}
    return loop.run(state, num_steps, **options)


def same_run(first, second):
    for a, b in zip(jax.tree.leaves(first.state), jax.tree.leaves(second.state), strict=True):
        np.testing.assert_array_equal(host_array(a), host_array(b))
    np.testing.assert_array_equal(first.history.step_losses, second.history.step_losses)
    np.testing.assert_array_equal(
        first.history.column("iteration"), second.history.column("iteration")
    )


def steps_in(folder):
    return sorted(int(path.name[5:17]) for path in folder.glob("step-*.vpng"))


def test_a_resumed_run_ends_where_the_whole_one_ends(loop, tmp_path):
    whole = run(loop, 40)
    run(loop, 15, tmp_path)
    rest = run(loop, 40, tmp_path, resume=True)
    same_run(whole, rest)
    seconds = rest.history.column("seconds")
    assert (np.diff(seconds) > 0).all()  # the clock goes on, it does not start again
    assert rest.stop_reason is StopReason.STEPS


def test_resume_of_a_new_folder_starts_and_of_a_finished_run_is_done(loop, tmp_path):
    first = run(loop, 10, tmp_path / "new" / "folder", resume=True)
    calls = []
    again = run(loop, 10, tmp_path / "new" / "folder", resume=True, callbacks=[calls.append])
    same_run(first, again)
    assert calls == []


def test_the_last_ones_are_kept(loop, tmp_path):
    run(loop, 42, tmp_path, every=10)
    assert steps_in(tmp_path) == [30, 40, 42]
    # One at the start, one at the end, none between if they are not due.
    run(loop, 42, tmp_path / "b", checkpoints=Checkpoints(tmp_path / "b", 3, EverySeconds(1e4)))
    assert steps_in(tmp_path / "b") == [0, 42]


def test_a_callback_that_stopped_the_run_is_not_overruled_by_resuming(loop, tmp_path):
    stopped = run(loop, 40, tmp_path, callbacks=[lambda record, state: record.iteration >= 10])
    again = run(loop, 40, tmp_path, resume=True)
    assert again.stop_reason is StopReason.CALLBACK
    same_run(stopped, again)


def test_time_counts_from_the_start_of_the_run(loop, tmp_path):
    first = run(loop, 10, tmp_path)
    spent = first.history.column("seconds")[-1]
    again = run(loop, 40, tmp_path, resume=True, max_seconds=0.9 * spent)
    assert again.stop_reason is StopReason.SECONDS
    assert int(again.state.step) == 10


def test_checkpoints_are_not_overwritten_by_accident(loop, tmp_path):
    run(loop, 10, tmp_path)
    with pytest.raises(InputError, match=r"^resume: expected True .* step 10 of a run"):
        run(loop, 20, tmp_path)


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path, part=0.5):
    content = bytearray(path.read_bytes())
    content[int(part * len(content))] ^= 0x10
    path.write_bytes(content)


def empty(path):
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_checkpoint_is_passed_over(loop, tmp_path, damage):
    whole = run(loop, 40)
    run(loop, 20, tmp_path)
    damage(tmp_path / "step-000000000020.vpng")
    with pytest.warns(RuntimeWarning, match=r"at step 20 is damaged"):
        same_run(whole, run(loop, 40, tmp_path, resume=True))
    # Both of the newest: the third is used.
    shutil.rmtree(tmp_path)
    run(loop, 20, tmp_path)
    for step in (15, 20):
        damage(tmp_path / f"step-{step:012d}.vpng")
    with pytest.warns(RuntimeWarning, match=r"at step 15 is damaged"):
        same_run(whole, run(loop, 40, tmp_path, resume=True))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_flipped_byte_is_noticed(loop, tmp_path):
    """A flip is noticed, or changes nothing that is read: the state is the same to the bit."""
    run(loop, 20, tmp_path)
    path = tmp_path / "step-000000000020.vpng"
    content = path.read_bytes()
    expected = run(loop, 20, tmp_path, resume=True).state
    noticed = 0
    for place in np.random.default_rng(0).integers(0, len(content), 60):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(place % 8)
        for name in steps_in(tmp_path):
            (tmp_path / f"step-{name:012d}.vpng").unlink()
        path.write_bytes(damaged)
        try:
            state = run(loop, 20, tmp_path, resume=True).state
        except InputError:
            noticed += 1
        else:
            for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(host_array(a), host_array(b))
    assert noticed > 30


def test_a_missing_newest_checkpoint_is_no_matter(loop, tmp_path):
    whole = run(loop, 40)
    run(loop, 20, tmp_path)
    (tmp_path / "step-000000000020.vpng").unlink()
    same_run(whole, run(loop, 40, tmp_path, resume=True))


def test_nothing_but_damage_is_an_error(loop, tmp_path):
    run(loop, 20, tmp_path)
    for step in steps_in(tmp_path):
        truncate(tmp_path / f"step-{step:012d}.vpng")
    with (
        pytest.warns(RuntimeWarning),
        pytest.raises(InputError, match=r"a checkpoint that is whole, got 3 damaged ones; remove"),
    ):
        run(loop, 40, tmp_path, resume=True)


def test_a_log_that_is_too_long_is_cut(loop, tmp_path):
    """As after a kill between the history and the checkpoint, or in the middle of a line."""
    whole = run(loop, 40)
    run(loop, 20, tmp_path)
    with (tmp_path / "history.log").open("ab") as file:
        file.write(b"half a li")
    same_run(whole, run(loop, 40, tmp_path, resume=True))


def test_a_damaged_history_does_not_lose_the_state(loop, tmp_path):
    whole = run(loop, 40)
    run(loop, 20, tmp_path)
    flip(tmp_path / "history.log", 0.01)
    with pytest.warns(RuntimeWarning, match="history before step 20 is lost"):
        rest = run(loop, 40, tmp_path, resume=True)
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(rest.params), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(rest.history.column("iteration"), [25, 30, 35, 40])
    same_run(rest, run(loop, 40, tmp_path, resume=True))


def test_a_cut_history_takes_the_checkpoint_that_it_reaches(loop, tmp_path):
    whole = run(loop, 40)
    run(loop, 20, tmp_path)
    os.truncate(tmp_path / "history.log", (tmp_path / "history.log").stat().st_size - 3)
    with pytest.warns(RuntimeWarning, match=r"history at step 20 is damaged"):
        same_run(whole, run(loop, 40, tmp_path, resume=True))


def test_what_a_kill_left_half_written_is_cleared_away(loop, tmp_path):
    run(loop, 10, tmp_path)
    (tmp_path / ".abc.vpng").write_bytes(b"half")
    run(loop, 10, tmp_path, resume=True)
    assert {path.name[0] for path in tmp_path.iterdir()} == {"s", "h"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optimizer": optimizers.gradient(0.05)},
            r"state.optimizer\[1\].mu.variational: nothing \(found float32",
        ),
        ({"optimizer": adam(0.01)}, "the computation of a step: another learning rate"),
        ({"objective": ELBO(3)}, r"objective: ELBO.*num_particles=3.*found ELBO"),
        (
            {"batch_size": 4, "record_every": 6, "data": setting()[2] + 1.0},
            r"batches:.*batch_size=4.*found.*batch_size=3.*record_every: 6 \(found 5\).*"
            "arrays of data: other values",
        ),
    ],
)
def test_another_run_is_refused_with_what_differs(loop, tmp_path, changes, message):
    run(loop, 5, tmp_path)
    problem, parameters, data = setting()
    given = {"data": data, "optimizer": adam(), "batch_size": 3, "record_every": 5, **changes}
    with pytest.raises(InputError, match=rf"a checkpoint of this run, got .*{message}"):
        fit(
            problem,
            parameters,
            num_steps=5,
            rng_key=jax.random.key(0),
            progress=False,
            checkpoints=Checkpoints(tmp_path),
            resume=True,
            **given,
        )
    assert steps_in(tmp_path) == [0, 5]


def test_other_shapes_and_types_are_named():
    tree = lambda size, dtype: {"loc": jnp.zeros(size), "key": jnp.zeros((), dtype)}
    mine, other = (
        RunIdentity.of(tree(size, dtype), {}, lambda: 0)
        for size, dtype in ((3, jnp.float32), (4, jnp.bfloat16))
    )
    assert mine.differences(mine) == []
    assert mine.differences(other) == [
        "state['key']: float32[] (found bfloat16[])",
        "state['loc']: float32[3] (found float32[4])",
    ]
    many = RunIdentity.of([0.0] * 20, {}, lambda: 0)
    assert many.differences(mine)[-1] == "and 16 more"


def test_another_process_or_version_goes_on(loop, tmp_path, monkeypatch):
    run(loop, 5, tmp_path)
    problem, parameters, data = setting()
    other = Loop(problem, parameters, data, adam(), batch_size=3, record_every=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(other, 10, tmp_path, resume=True)
    monkeypatch.setattr("vpng.run.identity.__version__", "99.0")
    monkeypatch.setattr(other._steps, "known_identity", None)
    with pytest.warns(RuntimeWarning, match=r"vpng 99.0 \(was .*the last bits may differ"):
        same_run(run(loop, 15), run(other, 15, tmp_path, resume=True))


def test_a_folder_that_is_a_file_is_refused_before_the_first_step(loop, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^directory: expected a folder .*, got the file"):
        run(loop, 10, tmp_path / "file")
    with pytest.raises(InputError, match=r"^directory: cannot write to"):
        run(loop, 10, tmp_path / "file" / "below")


@pytest.mark.parametrize("resume", [False, True])
def test_a_read_only_folder_is_refused_before_the_first_step(loop, tmp_path, monkeypatch, resume):
    if resume:
        run(loop, 5, tmp_path)

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr("vpng.storage.files.tempfile.mkstemp", refuse)
    calls = []
    with pytest.raises(InputError, match=r"^directory: cannot write to .*Read-only file system"):
        run(loop, 10, tmp_path, resume, callbacks=[calls.append])
    assert calls == []


def test_too_little_space_is_refused_before_the_first_step(loop, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("vpng.run.checkpoint.shutil.disk_usage", lambda path: usage)
    with pytest.raises(InputError, match=r"^directory: expected 0.3 MB .*, got 0.0 MB; make room"):
        run(loop, 10, tmp_path)


@pytest.mark.parametrize("where", ["checkpoint", "history"])
def test_a_disk_that_fills_up_does_not_end_the_run(loop, tmp_path, monkeypatch, where):
    whole, failing = run(loop, 40), [False]

    def full_at_ten(record, state):
        failing[0] = 10 <= record.iteration < 30

    def no_space(real):
        def call(target):
            if failing[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(target)

        return call

    if where == "checkpoint":
        monkeypatch.setattr("vpng.storage.files.synchronise", no_space(synchronise))
    else:
        monkeypatch.setattr("vpng.run.logbook.os.fsync", no_space(os.fsync))
    with pytest.warns(RuntimeWarning, match=r"no checkpoint at step .* the run goes on.*No space"):
        result = run(loop, 40, tmp_path, callbacks=[full_at_ten])
    same_run(whole, result)
    assert steps_in(tmp_path) == [30, 35, 40]
    monkeypatch.undo()
    same_run(whole, run(loop, 40, tmp_path, resume=True))


def test_older_checkpoints_stay_when_the_disk_stays_full(loop, tmp_path, monkeypatch):
    run(loop, 15, tmp_path)

    def refuse(*args, **kwargs):
        raise InputError("cannot be written: No space left on device.")

    monkeypatch.setattr("vpng.run.checkpoint.write_archive", refuse)
    with pytest.warns(RuntimeWarning, match="No space"):
        run(loop, 40, tmp_path, resume=True)
    assert steps_in(tmp_path) == [5, 10, 15]
    monkeypatch.undo()
    same_run(run(loop, 40), run(loop, 40, tmp_path, resume=True))


class Edge(LinearLatent):
    """Not finite for theta above ten."""

    def likelihood(self, model, latent, batch):
        return super().likelihood(jnp.where(model > 10.0, jnp.nan, model), latent, batch)


def reckless():
    """Now and then an update that is not a number, or one that jumps over the edge."""

    def update(updates, state, params=None, *, rng_key, **extra):
        luck = jax.random.uniform(rng_key)
        jump = lambda g, p: jnp.where(luck < 0.35, 20.0 - p, -0.01 * g)
        move = lambda g, p: jnp.where(luck < 0.2, jnp.nan, jump(g, p))
        return jax.tree.map(move, updates, params), state

    return optax.GradientTransformationExtraArgs(lambda params: (), update)


class KilledError(Exception):
    """The power went."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_goes_back_to_good_points_is_resumed_exactly(tmp_path):
    """What the guard knows is kept too: the last good point, whatever the chunk ended at."""
    _, parameters, data = setting()
    loop = Loop(Edge(num_data=NUM_DATA), parameters, data, reckless(), record_every=5)
    whole = run(loop, 60)
    assert int(whole.state.rejected) > 10
    for place in range(10, 65, 5):

        def die(record, state, place=place):
            if record.iteration == place:
                raise KilledError

        with pytest.raises(KilledError):
            run(loop, 60, tmp_path, resume=True, callbacks=[die])
    same_run(whole, run(loop, 60, tmp_path, resume=True))


def test_all_kinds_of_leaves_come_back(tmp_path):
    state = {
        "bfloat16": jnp.arange(3.0, dtype=jnp.bfloat16),
        "bool": jnp.array([True, False]),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 2),
        "old key": jax.random.PRNGKey(5),
        "empty": jnp.zeros((0, 2)),
        "nan": jnp.array([jnp.nan, -0.0, jnp.inf]),
        "nothing": None,
        "uint8": jnp.arange(4, dtype=jnp.uint8),
    }
    identity = RunIdentity.of(state, {}, lambda: 0)
    keep = Checkpoints(tmp_path)
    CheckpointFolder(keep, identity, state, resume=False).write(1, state, 0.5, "CALLBACK")
    found = CheckpointFolder(keep, identity, state, resume=True).found
    assert found is not None
    assert (found.seconds, found.ending) == (0.5, "CALLBACK")
    restored = jax.tree.leaves_with_path(found.state)
    for (path, a), (_, b) in zip(jax.tree.leaves_with_path(state), restored, strict=True):
        assert jnp.result_type(a) == b.dtype, path
        assert host_array(a).tobytes() == host_array(b).tobytes(), path
    assert found.state["nothing"] is None


def test_the_history_is_written_once(tmp_path):
    """Each line has what is new: the file grows with the run and not with its square."""
    log = Logbook(tmp_path / "history.log")
    sizes = []
    for i in range(50):
        record = Record(10 * (i + 1), 0.1 * i, float("nan"), float("inf"), 0, {"m": 1 / 3})
        log.append(History([record], [np.full(10, i, np.float32)]))
        sizes.append(log.size)
    assert np.ptp(np.diff(sizes)) < 20
    history = Logbook(tmp_path / "history.log").read(log.size)
    assert history.column("m")[0] == 1 / 3
    assert np.isnan(history.column("loss")).all()
    np.testing.assert_array_equal(history.step_losses, np.repeat(np.arange(50), 10))
    np.testing.assert_array_equal(history.latest(15), history.step_losses[-15:])
    assert len(Logbook(tmp_path / "history.log").read(sizes[3]).records) == 4


def test_nothing_in_a_checkpoint_is_a_pickle(loop, tmp_path):
    import zipfile

    run(loop, 5, tmp_path)
    with zipfile.ZipFile(tmp_path / "step-000000000005.vpng") as archive:
        assert set(archive.namelist()) == {"header.json", "header.sha256", "arrays.npz"}
        assert json.loads(archive.read("header.json"))["format"] == "vpng.checkpoint"


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("directory", lambda: Checkpoints(3)),
        ("keep", lambda: Checkpoints("x", keep=0)),
        ("every", lambda: Checkpoints("x", every=10)),
        ("every", lambda: EverySteps(0)),
        ("every", lambda: EverySeconds(float("nan"))),
    ],
)
def test_bad_settings(name, make):
    with pytest.raises(InputError, match=rf"^{name}: expected .*, got "):
        make()


def test_a_rule_for_stopping_survives_a_resume(tmp_path):
    """The windows span the interruption: the run stops where the whole one stops."""
    problem, parameters, data = setting()
    loop = Loop(problem, parameters, data, adam(0.1), record_every=7)
    rule = Converged(window=20, patience=2, max_steps=2000)
    whole = run(loop, 2000, stop=rule)
    assert whole.stop_reason is StopReason.CONVERGED
    run(loop, 49, tmp_path, every=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same_run(whole, run(loop, 2000, tmp_path, resume=True, stop=rule))
    again = run(loop, 2000, tmp_path, resume=True, stop=rule)
    assert again.stop_reason is StopReason.CONVERGED
