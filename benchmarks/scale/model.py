"""What a step costs on many devices, from measurements on one and two."""

from math import log2
from typing import NamedTuple

import numpy as np


class Link(NamedTuple):
    """A message of b bytes takes `latency` + b / `bandwidth` seconds."""

    latency: float
    bandwidth: float

    @classmethod
    def fitted(cls, seconds: dict[str, float]) -> "Link":
        """From times of all-reduces between two processes, each of which sends its bytes once."""
        sizes = np.array([float(size) for size in seconds])
        slope, start = np.polyfit(sizes, list(seconds.values()), 1)
        return cls(max(float(start), 1e-6), 1.0 / max(float(slope), 1e-15))


class Step(NamedTuple):
    """The parts of a step on one device: `fixed` + `per_datum` times the data in the batch.

    What is fixed is done on every device again (the optimizer, products with the inverses), but for
    `inverting`, which is divided.
    """

    fixed: float
    per_datum: float
    inverting: float

    @classmethod
    def fitted(cls, seconds: dict[str, float], inverting: float = 0.0) -> "Step":
        """From the times of a step by batch size, `inverting` of them for inverses."""
        sizes = np.array([float(size) for size in seconds])
        slope, start = np.polyfit(sizes, list(seconds.values()), 1)
        return cls(max(float(start) - inverting, 0.0), float(slope), inverting)

    def seconds(
        self, batch: int, devices: int, sent: float, messages: int, link: Link, tasks: int
    ) -> dict[str, float]:
        """The time of a step, and the part of it that is spent on messages.

        Args:
            batch: data in the global batch.
            devices: n.
            sent: bytes that each device sends in a step.
            messages: collectives in a step, on average.
            link: between devices.
            tasks: inverses that can be done at the same time.
        """
        work = self.fixed + self.per_datum * batch / devices
        work += self.inverting / min(devices, max(tasks, 1))
        talk = 0.0
        if devices > 1:
            talk = messages * link.latency * log2(devices) + sent / link.bandwidth
        return {"seconds": work + talk, "share of collectives": talk / (work + talk)}
