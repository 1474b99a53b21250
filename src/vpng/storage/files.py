"""Files that are written whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from vpng.errors import expected


def write_atomically(path: Path, write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, then rename it into place.

    The content reaches the disk before its name does, and the name before this returns: after a
    crash of the machine there is the old file or the new one.
    """
    if path.is_dir():
        raise expected(str(path), "a file, or nothing", "a folder")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        synchronise(temporary)
        temporary.replace(path)
        synchronise(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def synchronise(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk; where POSIX says how."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
