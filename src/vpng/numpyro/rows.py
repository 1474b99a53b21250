"""The rows of a batch stand for all data."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int
from numpyro.primitives import CondIndepStackFrame, Messenger

from vpng.errors import InputError

Message = dict[str, Any]


class RowsOfBatch(Messenger):
    """Model and guide inside this handler count every row of a batch N / B times.

    The plate of the rows becomes one of N with a subsample of B. A plate that is one already counts
    its rows itself. Of a batch that was filled up only the first rows count, as many more times.

    Attributes:
        num_rows: B.
        num_data: N.
        plate: the name of the plate, None for any of B rows.
        count: rows that are not copies; None if that is all of them.
        whole: names of the plates that are of N already.
        observed: names of the plates of rows that held observations.
    """

    def __init__(
        self,
        num_rows: int,
        num_data: int,
        plate: str | None = None,
        count: Int[Array, ""] | None = None,
    ) -> None:
        super().__init__()
        self.num_rows = num_rows
        self.num_data = num_data
        self.plate = plate
        self.count = count
        self.whole: set[str] = set()
        self.observed: set[str] = set()

    def process_message(self, msg: Message) -> None:
        if msg["type"] == "plate":
            self._see(msg)
        frames = [frame for frame in msg.get("cond_indep_stack", ()) if self._is_of_rows(frame)]
        if not frames:
            return
        if msg["type"] == "param":
            raise InputError(
                f"guide: expected parameters that all batches share, got {msg['name']!r} in the "
                f"plate {frames[0].name!r} of the rows of a batch. Compute them from the data, or "
                "give the data whole and draw them in a plate with subsample_size."
            )
        if msg["type"] == "sample":
            self._weigh(msg, frames[0])

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if kind is None and len(self.observed) != 1:
            raise InputError(
                f"model: expected one plate of the {self.num_rows} rows of a batch that holds "
                f"observations, got {sorted(self.observed) or 'none'}. Give its name: "
                "BatchesFrom(loader, plate=...)."
            )

    def _see(self, msg: Message) -> None:
        size, subsample_size = msg["args"]
        if self._is_named(msg["name"]) and size == self.num_rows != self.num_data:
            msg["args"] = (self.num_data, self.num_rows)
        elif self._is_named(msg["name"]) and subsample_size == self.num_rows:
            self.whole.add(msg["name"])

    def _is_named(self, name: str) -> bool:
        return self.plate in (None, name)

    def _is_of_rows(self, frame: CondIndepStackFrame) -> bool:
        return self._is_named(frame.name) and frame.size == self.num_rows

    def _weigh(self, msg: Message, frame: CondIndepStackFrame) -> None:
        if msg["is_observed"]:
            self.observed.add(frame.name)
        factor = 1.0 if frame.name in self.whole else self.num_data / self.num_rows
        if self.count is not None:
            factor = factor * self.num_rows / self.count
            counts = jnp.arange(self.num_rows) < self.count
            msg["fn"] = msg["fn"].mask(counts.reshape((-1,) + (1,) * (-frame.dim - 1)))
        msg["scale"] = factor if msg["scale"] is None else msg["scale"] * factor
