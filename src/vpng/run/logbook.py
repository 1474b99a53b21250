"""The history of a run as a file that only grows: a line with its checksum for every checkpoint.

What a long run remembers is written once, not again with every checkpoint. A line that was half
written when the machine died, or that belongs to a checkpoint that is not there, is cut off.
"""

import base64
import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vpng.errors import expected
from vpng.run.history import History, Record


class Logbook:
    """Lines of `<SHA-256> <JSON>`.

    Attributes:
        size: bytes that count; what comes after them is not believed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = 0

    def read(self, size: int) -> History:
        """The history in the first `size` bytes.

        Raises:
            InputError: if they are not there, or damaged.
        """
        content = self._path.read_bytes()[:size] if self._path.exists() else b""
        if len(content) < size:
            raise expected(str(self._path), f"{size} bytes", f"{len(content)}: it was cut off")
        history = History()
        for number, line in enumerate(content.splitlines(), start=1):
            digest, _, text = line.partition(b" ")
            if hashlib.sha256(text).hexdigest().encode() != digest:
                wanted = "a line with its own checksum"
                raise expected(f"{self._path}, line {number}", wanted, "another: it is damaged")
            part = from_entry(json.loads(text))
            history.records.extend(part.records)
            history.losses.extend(part.losses)
        return history

    def cut(self, size: int) -> None:
        """Go on after the first `size` bytes."""
        self.size = size
        if self._path.exists():
            os.truncate(self._path, size)

    def append(self, history: History) -> None:
        """Write a line, to the disk or not at all."""
        text = json.dumps(as_entry(history)).encode()
        line = b"%s %s\n" % (hashlib.sha256(text).hexdigest().encode(), text)
        # A write that failed before may have left a part of its line.
        self.cut(self.size)
        with self._path.open("ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.size += len(line)


def as_entry(history: History) -> dict[str, Any]:
    """A history as JSON has it, to the bit."""
    return {
        "records": [asdict(record) for record in history.records],
        "losses": _packed(history.step_losses),
    }


def from_entry(entry: dict[str, Any]) -> History:
    """The history that `as_entry` was made from."""
    records = [Record(**record) for record in entry["records"]]
    return History(records, [_unpacked(entry["losses"])])


def _packed(losses: np.ndarray) -> dict[str, Any]:
    # Types that NumPy does not know by itself, such as bfloat16, all fit into a float32.
    plain = losses if losses.dtype.kind == "f" else losses.astype(np.float32)
    little = plain.astype(plain.dtype.newbyteorder("<"), copy=False)
    return {"dtype": little.dtype.str, "base64": base64.b64encode(little.tobytes()).decode()}


def _unpacked(packed: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["base64"]), np.dtype(packed["dtype"]))
