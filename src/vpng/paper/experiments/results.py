"""Results on disk: one documented JSON file per experiment, written whole or not at all."""

import csv
import hashlib
import io
import json
import math
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from vpng.numerics.jax_settings import jax_setting
from vpng.storage.files import write_atomically

SCHEMA = "vpng.results/1"
SCHEMA_VERSION = 1

CSV_COLUMNS = (
    *("experiment", "method", "seed", "learning_rate"),
    *("record", "iteration", "seconds", "quantity", "value"),
)

Table = tuple[list[str], list[list[str]]]
"""Heads and rows."""


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
class Headline:
    """The one curve by which methods are judged.

    Attributes:
        metric: the name of the curve.
        label: what it is called in figures and sentences.
        higher_is_better: which way is ahead.
        axes: the curves that it may be drawn against, the first by default.
        goal: the level at which a run has arrived; methods are judged by how soon if there is one.
    """

    metric: str
    label: str
    higher_is_better: bool = True
    axes: tuple[str, ...] = ("iteration",)
    goal: float | None = None


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
        headline: the curve that methods are judged by; None if no methods are compared.
        paper: what the paper says of its own runs, in sentences.
    """

    experiment: str
    configuration: dict[str, Any]
    runs: list[Run]
    summary: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)
    headline: Headline | None = None
    paper: tuple[str, ...] = ()

    def to_json(self, table: Table | None = None) -> str:
        """The file's text, with the printed table; numbers that are not finite become null."""
        document = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "experiment": self.experiment,
            "environment": environment(),
            "configuration": self.configuration,
            "runs": [asdict(run) for run in self.runs],
            "summary": self.summary,
            "headline": None if self.headline is None else asdict(self.headline),
            "paper": self.paper,
            "table": None if table is None else {"heads": table[0], "rows": table[1]},
            **self.extra,
        }
        return json.dumps(plain(document), indent=1, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """Every curve in long form: one line for each number.

        A line has the record's iteration and seconds where the run has them, so that a curve can be
        drawn against either without a join.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(CSV_COLUMNS)
        for run in self.runs:
            length = len(next(iter(run.curves.values()), []))
            axes = [run.curves.get(axis, [""] * length) for axis in ("iteration", "seconds")]
            for quantity, values in run.curves.items():
                if quantity in ("iteration", "seconds"):
                    continue
                for record, (iteration, seconds, value) in enumerate(
                    zip(*axes, values, strict=True)
                ):
                    shown = value if value is not None and math.isfinite(value) else ""
                    writer.writerow(
                        [
                            *(self.experiment, run.method, run.seed, run.learning_rate),
                            *(record, iteration, seconds, quantity, shown),
                        ]
                    )
        return text.getvalue()


def environment() -> dict[str, Any]:
    """The software and hardware that the numbers depend on."""
    packages = ("vpng", "jax", "jaxlib", "numpyro", "optax", "lineax", "equinox", "numpy")
    return {
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].platform,
        "x64": bool(jax_setting("jax_enable_x64")),
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


def write_text(path: Path, text: str) -> Path:
    """Write `text` to `path`, whole or not at all."""
    return write_atomically(path, lambda target: target.write_text(text, encoding="utf-8"))


def plain(value: Any) -> Any:
    """`value` in the terms of JSON; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | jax.Array):
        return plain(np.asarray(value).tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
