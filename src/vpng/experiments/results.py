"""Results on disk: one documented JSON file per experiment, written whole or not at all."""

import hashlib
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

SCHEMA = "vpng.results/1"


@dataclass(frozen=True)
class Run:
    """One optimisation: how it was set up and how it went.

    Attributes:
        method: the method's name.
        seed: the seed of the run.
        learning_rate: the step size; None where the method has none.
        params_sha256: of the final parameters.
        curves: numbers against the run's own axis, by name; all of one length.
        settings: anything else that was chosen for the run.
    """

    method: str
    seed: int
    learning_rate: float | None
    params_sha256: str
    curves: dict[str, list[float]]
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """What an experiment found.

    Attributes:
        experiment: its name.
        configuration: every setting.
        runs: the runs behind the summary.
        summary: per method, the numbers that matter.
        extra: what else the experiment wants to keep, for instance the whole grid.
        artifacts: what only the figures need; not part of the file.
    """

    experiment: str
    configuration: dict[str, Any]
    runs: list[Run]
    summary: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The file's text; numbers that are not finite become null."""
        document = {
            "schema": SCHEMA,
            "experiment": self.experiment,
            "environment": environment(),
            "configuration": self.configuration,
            "runs": [asdict(run) for run in self.runs],
            "summary": self.summary,
            **self.extra,
        }
        return json.dumps(_plain(document), indent=1, allow_nan=False) + "\n"


def environment() -> dict[str, Any]:
    """The software and hardware that the numbers depend on."""
    packages = ("vpng", "jax", "jaxlib", "numpyro", "optax", "lineax", "equinox", "numpy")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].platform,
        "x64": bool(jax.config.jax_enable_x64),
        "packages": {name: version(name) for name in packages},
        "command": ["vpng", *sys.argv[1:]],
    }


def params_sha256(params: PyTree) -> str:
    """A fingerprint of parameters: shapes, dtypes and bits."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)}:{array.dtype}:{array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def mean_and_std(values: Any) -> dict[str, float]:
    """The mean and the sample standard deviation over runs."""
    array = np.asarray(values, dtype=np.float64)
    spread = float(array.std(ddof=1)) if array.size > 1 else 0.0
    return {"mean": float(array.mean()), "std": spread}


def write_atomically(path: Path, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a temporary file beside `path`, then rename it into place."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path`, whole or not at all."""
    return write_atomically(path, lambda target: target.write_text(text, encoding="utf-8") and None)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
