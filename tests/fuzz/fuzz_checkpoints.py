"""Folders of checkpoints, whole, damaged and foreign."""

import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from fuzz_target import Target, refused, stays_inside
from hypothesis import strategies as st

from vpng.run.checkpoint import CheckpointFolder
from vpng.run.history import Record
from vpng.run.identity import RunIdentity
from vpng.training import Checkpoints, EverySteps

STATE = {"weights": jnp.arange(3.0), "key": jax.random.key(3), "count": jnp.int32(4)}


def _identity() -> RunIdentity:
    leaves = {
        jax.tree_util.keystr(p): str(leaf.dtype)
        for p, leaf in jax.tree_util.tree_leaves_with_path(STATE)
    }
    return RunIdentity({"program": "p"}, leaves, {"vpng": "1"})


@st.composite
def checkpoint_folders(draw) -> list[tuple[str, int, bytes]]:
    """Damage to be done: which file (by its place in the list), where, and with what."""
    files = st.integers(0, 3)
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from(["set", "cut", "add", "drop"]),
                files,
                st.integers(0, 2000),
                st.binary(min_size=1, max_size=8),
            ),
            max_size=3,
        )
    )


def check_checkpoint(case: list[tuple[str, int, int, bytes]], folder: Path) -> None:
    place = folder / "kept"
    settings = Checkpoints(place, keep=2, every=EverySteps(1))
    keeper = CheckpointFolder(settings, _identity(), STATE, resume=False)
    for step in (1, 2):
        state = {**STATE, "weights": STATE["weights"] + step}
        record = Record(step, 0.1 * step, 1.0, 0.1, 0, {"m": 2.0})
        keeper.note([record], np.array([1.0 * step]))
        keeper.write(step, state, 0.1 * step)
    for kind, which, where, content in case:
        paths = sorted(path for path in place.iterdir() if path.is_file())
        if not paths:
            break
        path = paths[which % len(paths)]
        data = bytearray(path.read_bytes())
        where = min(where, len(data))
        if kind == "drop":
            path.unlink()
            continue
        if kind == "set":
            data[where : where + len(content)] = content
        elif kind == "add":
            data[where:where] = content
        else:
            del data[where:]
        path.write_bytes(bytes(data))
    with stays_inside(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad, keeper = refused(lambda: CheckpointFolder(settings, _identity(), STATE, resume=True))
    if bad or keeper.found is None:
        assert case, "a whole checkpoint was refused"
        return
    found = keeper.found
    step = round(float(found.state["weights"][0]))
    assert step in (1, 2)
    np.testing.assert_array_equal(found.state["weights"], STATE["weights"] + step)
    assert len(found.history.records) in (0, step)


TARGETS = {
    "checkpoint": Target(checkpoint_folders(), check_checkpoint, 2.0),
}
