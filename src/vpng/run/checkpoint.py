"""Checkpoints: a run that is killed goes on where it was, to the bit.

A checkpoint is one file with everything the next step reads, written to a temporary name, flushed
and renamed, with checksums inside. Arrays are whole and kept under their path in the state, however
they were divided among devices. The history is beside them in a `Logbook`.
"""

import re
import shutil
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from vpng.checks import finite_scalar, positive_integer
from vpng.distributed.processes import arrays_from_first, from_first, in_any_process, is_first
from vpng.errors import InputError, expected
from vpng.numerics.trees import is_key
from vpng.run.history import History, Record
from vpng.run.identity import RunIdentity, host_array
from vpng.run.logbook import Logbook, as_entry, from_entry
from vpng.storage.archive import Format, read_archive, write_archive
from vpng.storage.files import write_atomically

KIND = "run"
_NAME = re.compile(r"step-(\d{12})\.vpng")
_OVERHEAD = 2**16


@dataclass(frozen=True)
class EverySteps:
    """A checkpoint at the first record after `count` more steps."""

    count: int

    def __post_init__(self) -> None:
        positive_integer("every", self.count)


@dataclass(frozen=True)
class EverySeconds:
    """A checkpoint at the first record after `count` more seconds."""

    count: float

    def __post_init__(self) -> None:
        finite_scalar("every", self.count, minimum=0.0, strict=False)


@dataclass(frozen=True)
class Checkpoints:
    """Where a run keeps its state, and how often.

    Attributes:
        directory: a folder of the run's own.
        keep: how many checkpoints are kept, the newest ones.
        every: when the next one is due; one is always made at the start, at the end and when a
            signal stops the run.
    """

    directory: Path | str
    keep: int = 3
    every: EverySteps | EverySeconds = EverySeconds(60.0)

    def __post_init__(self) -> None:
        if not isinstance(self.directory, Path | str):
            raise expected("directory", "a path", repr(self.directory))
        positive_integer("keep", self.keep)
        if not isinstance(self.every, EverySteps | EverySeconds):
            raise expected("every", "EverySteps(...) or EverySeconds(...)", repr(self.every))


class Saved(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        state: the state, on the default device.
        step: steps done.
        history: of the run up to here.
        seconds: time spent in steps.
        ending: the name of the reason for which the run ended; None if it did not.
    """

    state: PyTree
    step: int
    history: History
    seconds: float
    ending: str | None


class CheckpointFolder:
    """The checkpoints of one run.

    Attributes:
        found: what a run before this one left to go on from; None for a new run.
    """

    found: Saved | None

    def __init__(
        self, checkpoints: Checkpoints, identity: RunIdentity, state: PyTree, *, resume: bool
    ) -> None:
        """Look for a checkpoint, and see that there can be more of them.

        Args:
            checkpoints: where and how often.
            identity: of the run.
            state: before the first step.
            resume: whether to go on from what is there.

        Raises:
            InputError: if the folder cannot be written to or is too small, if it has checkpoints
                and is not to be resumed, or if they are of another run.
        """
        self._settings, self._identity = checkpoints, identity
        self._folder = Path(checkpoints.directory)
        self._log = Logbook(self._folder / "history.log")
        self._pending = History()
        self._failing = False
        self.found = None
        about = from_first(lambda: self._look(state, resume))
        if about is not None:
            self.found = self._shared(about, state)
        self._saved_at, self._saved_step = time.monotonic(), 0

    def _look(self, state: PyTree, resume: bool) -> dict[str, Any] | None:
        """Find what there is to go on from; of several processes the first one reads and writes.

        The others hear from it what it found, and need no access to the folder.
        """
        _prepare(self._folder)
        if self._steps() and not resume:
            raise expected(
                "resume",
                "True for a folder with checkpoints, or another folder",
                f"False, with step {self._steps()[-1]} of a run in {self._folder}",
            )
        self._check_space(state)
        self.found = self._newest(state)
        if self.found is None:
            return None
        _, step, history, seconds, ending = self.found
        return {
            "step": step,
            "history": as_entry(history),
            "seconds": seconds,
            "ending": ending,
        }

    def _shared(self, about: dict[str, Any], state: PyTree) -> Saved:
        """What the first process found, on all of them."""
        if self.found is not None and jax.process_count() == 1:
            return self.found
        leaves, structure = jax.tree.flatten(state if self.found is None else self.found.state)
        arrays = arrays_from_first([host_array(leaf) for leaf in leaves])
        restored = [_like(leaf, _plain(a)) for leaf, a in zip(leaves, arrays, strict=True)]
        history = from_entry(about["history"])
        whole = jax.tree.unflatten(structure, restored)
        return Saved(whole, about["step"], history, about["seconds"], about["ending"])

    def note(self, records: list[Record], losses: np.ndarray) -> None:
        """Remember a part of the history for the next checkpoint."""
        self._pending.records.extend(records)
        self._pending.losses.append(losses)

    def due(self, step: int) -> bool:
        """Whether it is time for a checkpoint, by the clock of any process."""
        every = self._settings.every
        if isinstance(every, EverySteps):
            return step - self._saved_step >= every.count
        return in_any_process(time.monotonic() - self._saved_at >= every.count)

    def save(self, step: int, state: PyTree, seconds: float, ending: str | None = None) -> None:
        """Write a checkpoint; if that fails, warn once and go on: those before it are whole.

        Args:
            step: steps done.
            state: whole on this process.
            seconds: time spent in steps.
            ending: why the run has ended, if it has.
        """
        try:
            self.write(step, state, seconds, ending)
        except (InputError, OSError) as error:
            if not self._failing:
                _warn(f"no checkpoint at step {step}, the run goes on: {error}")
            self._failing = True
        else:
            self._failing = False

    def write(self, step: int, state: PyTree, seconds: float, ending: str | None = None) -> None:
        """`save` that fails if it cannot write.

        Raises:
            InputError: if the file cannot be written.
            OSError: if the history cannot be written.
        """
        self._saved_at, self._saved_step = time.monotonic(), step
        if not is_first():
            return
        if self._pending.losses:
            self._log.append(self._pending)
            self._pending = History()
        leaves = jax.tree.leaves(state)
        # An array that is there twice is written once.
        seen: dict[int, int] = {}
        places = [seen.setdefault(id(leaf), i) for i, leaf in enumerate(leaves)]
        settings = {
            "step": step,
            "seconds": seconds,
            "ending": ending,
            "history": self._log.size,
            "places": places,
            "identity": asdict(self._identity),
        }
        arrays = {str(i): _plain(host_array(leaves[i])) for i in seen.values()}
        write_archive(self._path(step), KIND, settings, arrays, form=Format.CHECKPOINT)
        for old in self._steps()[: -self._settings.keep]:
            self._path(old).unlink(missing_ok=True)

    def _newest(self, state: PyTree) -> Saved | None:
        """The newest checkpoint that is whole, with its history if that is whole too."""
        steps = self._steps()
        whole: list[tuple[int, Mapping[str, Any], Mapping[str, np.ndarray]]] = []
        for step in reversed(steps):
            try:
                settings, arrays = read_archive(self._path(step), KIND, form=Format.CHECKPOINT)
            except InputError as error:
                _warn(f"the checkpoint at step {step} is damaged and is passed over: {error}")
                continue
            self._refuse_another(step, RunIdentity(**settings["identity"]))
            whole.append((step, settings, arrays))
            try:
                history = self._log.read(settings["history"])
            except InputError as error:
                _warn(f"the history at step {step} is damaged and is passed over: {error}")
                continue
            return self._go_on_from(step, settings, arrays, state, history)
        if not steps:
            self._log.cut(0)
            return None
        if not whole:
            raise expected(
                str(self._folder),
                "a checkpoint that is whole",
                f"{len(steps)} damaged ones; remove them to start anew",
            )
        step, settings, arrays = whole[0]
        _warn(f"the history before step {step} is lost; the run goes on without it")
        return self._go_on_from(step, {**settings, "history": 0}, arrays, state, History())

    def _refuse_another(self, step: int, found: RunIdentity) -> None:
        differences = self._identity.differences(found)
        if differences:
            raise expected(
                str(self._path(step)), "a checkpoint of this run", "; ".join(differences)
            )
        changes = self._identity.changes(found)
        if changes:
            _warn(f"going on with {', '.join(changes)}: the last bits may differ")

    def _go_on_from(
        self,
        step: int,
        settings: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        state: PyTree,
        history: History,
    ) -> Saved:
        for later in self._steps():
            if later > step:
                self._path(later).unlink(missing_ok=True)
        self._log.cut(settings["history"])
        leaves, structure = jax.tree.flatten(state)
        found = [arrays[str(place)] for place in settings["places"]]
        restored = [_like(leaf, array) for leaf, array in zip(leaves, found, strict=True)]
        return Saved(
            jax.tree.unflatten(structure, restored),
            step,
            history,
            settings["seconds"],
            settings["ending"],
        )

    def _check_space(self, state: PyTree) -> None:
        """Room for all checkpoints that will be kept, and for one while it is written."""
        size = _OVERHEAD + sum(host_array(leaf).nbytes for leaf in jax.tree.leaves(state))
        wanted = max(self._settings.keep + 1 - len(self._steps()), 1) * size
        free = shutil.disk_usage(self._folder).free
        if free < wanted:
            raise expected(
                "directory",
                f"{wanted / 1e6:.1f} MB for checkpoints on the disk of {self._folder}",
                f"{free / 1e6:.1f} MB; make room, keep fewer, or choose another disk",
            )

    def _steps(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        names = [_NAME.fullmatch(path.name) for path in self._folder.iterdir()]
        return sorted(int(name[1]) for name in names if name)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:012d}.vpng"


def _prepare(folder: Path) -> None:
    """Make the folder, try to write there, and clear away what a killed run left half written."""
    if folder.exists() and not folder.is_dir():
        raise expected("directory", "a folder or a path that does not exist", f"the file {folder}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for half in folder.glob(".*.vpng"):
            half.unlink()
        probe = folder / ".probe.vpng"
        write_atomically(probe, lambda target: target.write_bytes(bytes(_OVERHEAD)))
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"directory: cannot write to {folder}: {error.strerror or error}."
        ) from error


def _plain(array: np.ndarray) -> np.ndarray:
    """Types that NumPy does not know by itself, such as bfloat16, as their bytes."""
    return array if array.dtype.kind in "biufc" else array.view(f"u{array.dtype.itemsize}")


def _like(leaf: Any, array: np.ndarray) -> Any:
    """The array as the leaf is: of its type, and a key if it is one."""
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array.view(jnp.result_type(leaf)) if array.dtype.kind == "u" else array)


def _warn(message: str) -> None:
    warnings.warn(f"vpng: {message}", RuntimeWarning, stacklevel=2)
