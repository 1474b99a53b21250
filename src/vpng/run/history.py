"""What a run remembers."""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Record:
    """The run at one moment.

    Attributes:
        iteration: steps done.
        seconds: time spent in steps, without compilation and evaluation.
        loss: mean of -ELBO per datum over the steps since the record before.
        standard_error: of that mean, from the spread of the steps.
        rejected: steps dropped since the record before.
        metrics: the chosen metrics at the current parameters.
        cause: what was not finite in the first of the dropped steps, and its number.
        exploded: those of the dropped steps after which the run went back to a good point.
    """

    iteration: int
    seconds: float
    loss: float
    standard_error: float
    rejected: int
    metrics: dict[str, float]
    cause: str = ""
    exploded: int = 0

    def flat(self) -> dict[str, float]:
        """All numbers under one level of names."""
        values: dict[str, Any] = vars(self).copy()
        del values["cause"], values["exploded"]
        return {**values.pop("metrics"), **values}


RESERVED = tuple(f.name for f in fields(Record) if f.name not in ("metrics", "cause", "exploded"))
"""Names that every record has, and no metric may take."""


@dataclass
class History:
    """The records of a run in order, and the loss of every step."""

    records: list[Record] = field(default_factory=list)
    losses: list[np.ndarray] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.records)

    def column(self, name: str) -> np.ndarray:
        """One number of every record, by its name."""
        return np.array([record.flat()[name] for record in self.records])

    @property
    def step_losses(self) -> np.ndarray:
        """-ELBO per datum of every step."""
        return np.concatenate(self.losses) if self.losses else np.zeros(0)

    def latest(self, count: int) -> np.ndarray:
        """-ELBO per datum of the last `count` steps, or of all if there are fewer."""
        parts, missing = [], count
        for losses in reversed(self.losses):
            if missing <= 0:
                break
            parts.append(losses[-missing:])
            missing -= len(losses)
        return np.concatenate(parts[::-1]) if parts else np.zeros(0)

    def to_dict(self) -> dict[str, list[float]]:
        """The records by column."""
        names = self.records[0].flat() if self.records else {}
        return {name: self.column(name).tolist() for name in names}
