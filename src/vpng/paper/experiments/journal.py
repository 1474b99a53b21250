"""Finished runs as files, so that a killed grid goes on where it was."""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from vpng.errors import InputError, expected
from vpng.paper.experiments.results import plain, write_text

GRID_SCHEMA = "vpng.grid/1"
_UNFINISHED = ".unfinished"


class Journal:
    """One folder of finished runs, all of one experiment and one configuration."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def open(
        cls, out: Path, experiment: str, configuration: dict[str, Any], *, resume: bool
    ) -> "Journal":
        """The journal in the output folder `out`, emptied unless `resume`.

        Raises:
            InputError: if `out` holds runs that would be lost, or runs of another configuration.
        """
        check_journal(out, experiment, configuration, resume=resume)
        folder = out / "runs"
        manifest = folder / "grid.json"
        if not resume or not manifest.exists():
            (out / "results.json").unlink(missing_ok=True)
            for path in folder.glob("*.json"):
                path.unlink()
            for path in folder.glob("*" + _UNFINISHED):
                shutil.rmtree(path)
            folder.mkdir(exist_ok=True)
            wanted = _manifest(experiment, configuration)
            write_text(manifest, json.dumps(wanted, indent=1) + "\n")
        return cls(folder)

    def recall(self, name: str) -> dict[str, Any] | None:
        """What was kept under `name`, or None."""
        path = self._path(name)
        return _read(path) if path.exists() else None

    def keep(self, name: str, document: dict[str, Any]) -> None:
        """Keep `document` under `name`, whole or not at all; its checkpoints are done with."""
        write_text(self._path(name), json.dumps(document, allow_nan=False) + "\n")
        shutil.rmtree(self._path(name, _UNFINISHED), ignore_errors=True)

    def unfinished(self, name: str) -> Path:
        """Where the run `name` keeps its checkpoints until it is finished."""
        return self._path(name, _UNFINISHED)

    @contextmanager
    def withdrawn_if_refused(self) -> Iterator[None]:
        """Remove the manifest if the input is refused before anything is kept, as if never opened.

        What is left of a refused grid would stand in the way of the next one.
        """
        try:
            yield
        except InputError:
            manifest = self._folder / "grid.json"
            kept = (path for path in self._folder.rglob("*") if path.is_file())
            if all(path == manifest for path in kept):
                shutil.rmtree(self._folder)
            raise

    def _path(self, name: str, suffix: str = ".json") -> Path:
        return self._folder / (re.sub(r"[^a-z0-9.]+", "-", name.lower()) + suffix)


def check_journal(
    out: Path, experiment: str, configuration: dict[str, Any], *, resume: bool
) -> None:
    """Refuse a folder whose runs would be lost, or are of another configuration.

    Raises:
        InputError: with what differs, or how to go on.
    """
    folder = out / "runs"
    manifest = folder / "grid.json"
    if not manifest.exists():
        _refuse_files_of_others(out, folder)
        return
    if resume:
        _refuse_another(manifest, _manifest(experiment, configuration))
    elif not (out / "results.json").exists():
        runs = sum(1 for path in folder.glob("*.json") if path != manifest)
        raise expected(
            "--out",
            "a folder without an unfinished grid",
            f"{out} with {runs} finished runs; go on with --resume, or remove {folder}",
        )


def _refuse_files_of_others(out: Path, runs: Path) -> None:
    """What is not of a grid is not ours to remove."""
    if runs.exists() and (not runs.is_dir() or any(runs.iterdir())):
        raise expected("--out", f"a folder in which {runs.name} is free", f"{runs} of another kind")
    results = out / "results.json"
    if results.exists() and not _is_ours(results):
        raise expected("--out", f"a folder in which {results.name} is free", f"{results}")


def _is_ours(results: Path) -> bool:
    try:
        document = json.loads(results.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and str(document.get("schema", "")).startswith("vpng.")


def _manifest(experiment: str, configuration: dict[str, Any]) -> dict[str, Any]:
    document = {"schema": GRID_SCHEMA, "experiment": experiment, "configuration": configuration}
    return json.loads(json.dumps(plain(document)))


def pack(array: np.ndarray) -> dict[str, Any]:
    """Numbers between 0 and 1 as bytes in a JSON value, good to 1/255."""
    levels = np.rint(255.0 * np.clip(np.asarray(array, np.float64), 0.0, 1.0)).astype(np.uint8)
    return {"shape": list(levels.shape), "bytes": base64.b64encode(levels.tobytes()).decode()}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """What `pack` packed."""
    levels = np.frombuffer(base64.b64decode(packed["bytes"]), np.uint8)
    return levels.reshape(packed["shape"]) / 255.0


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings in which two configurations differ, with both values."""
    keys = dict.fromkeys([*old, *new])
    return {key: (old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)}


def _refuse_another(manifest: Path, wanted: dict[str, Any]) -> None:
    found = _read(manifest)
    if found.get("experiment") != wanted["experiment"]:
        raise expected(
            "--resume", f"a grid of {wanted['experiment']}", f"one of {found.get('experiment')}"
        )
    changed = differences(found.get("configuration", {}), wanted["configuration"])
    if changed:
        listed = ", ".join(f"{key} {old} (now {new})" for key, (old, new) in changed.items())
        raise expected("--resume", "the configuration of the runs that are there", listed)


def _read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{path}: expected a JSON document, got {error}. Remove the file to run it again."
        ) from error
