"""Gzipped files by name: from the folder VPNG_DATA_DIR, else the user's cache, else a mirror.

Mirrors may pack a file differently, so what is verified is the unpacked content: its length and
its SHA-256. A download enters the cache only after that, by a rename.
"""

import gzip
import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from vpng.errors import InputError, expected

DATA_DIR_VARIABLE = "VPNG_DATA_DIR"

Content = TypeVar("Content")


class Mirrored(NamedTuple):
    """A gzipped file that several mirrors serve.

    Attributes:
        name: the file's name, on disk and at the end of its address.
        num_bytes: the length of the unpacked content.
        sha256: the checksum of the unpacked content, in hexadecimal.
    """

    name: str
    num_bytes: int
    sha256: str


def fetch(
    file: Mirrored,
    *,
    folder: str,
    mirrors: Sequence[str],
    cache: Path | None = None,
    progress: bool = True,
) -> bytes:
    """The unpacked, verified content of `file`.

    Args:
        file: what to find.
        folder: the data set's subfolder of the data folder and of the cache.
        mirrors: base addresses, tried in turn.
        cache: the cache folder; None for the user's own.
        progress: whether downloads show a progress bar.

    Raises:
        InputError: for a file that is corrupt, or that no mirror serves.
    """
    local = data_folder()
    if local is not None and (path := local / folder / file.name).is_file():
        remedy = f"Replace the file, or unset {DATA_DIR_VARIABLE} to have it downloaded."
        return _verified(path, file, label=str(path), remedy=remedy)
    path = cache_folder(cache) / folder / file.name
    if path.is_file():
        remedy = "Delete the file to have it downloaded again."
        return _verified(path, file, label=str(path), remedy=remedy)

    def accept(partial: Path, address: str) -> bytes:
        return _verified(partial, file, label=address, remedy="")

    return download(path, mirrors, accept, progress=progress)


def data_folder() -> Path | None:
    """The folder that VPNG_DATA_DIR names; None if it names none."""
    named = os.environ.get(DATA_DIR_VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser()
    if not path.is_dir():
        raise expected(DATA_DIR_VARIABLE, "a folder that exists, or no value", named)
    return path


def cache_folder(cache: Path | None) -> Path:
    """`cache`, or the user's own if None."""
    if cache is not None:
        return cache
    import pooch

    return Path(pooch.os_cache("vpng"))


def _verified(path: Path, file: Mirrored, *, label: str, remedy: str) -> bytes:
    """The unpacked content of `path`, never more than one byte beyond the expected length."""

    def refuse(wanted: str, got: str) -> InputError:
        return InputError(f"{expected(label, wanted, got)} {remedy}".rstrip())

    try:
        with gzip.open(path) as unpacking:
            content = unpacking.read(file.num_bytes + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        size = path.stat().st_size
        raise refuse(
            "a complete gzip file", f"{size} bytes that do not unpack ({error})"
        ) from error
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror or error}.") from error
    if len(content) != file.num_bytes:
        more = "more" if len(content) > file.num_bytes else str(len(content))
        raise refuse(f"{file.num_bytes} unpacked bytes", more)
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != file.sha256:
        raise refuse(f"unpacked content with SHA-256 {file.sha256}", checksum)
    return content


def download(
    path: Path,
    mirrors: Sequence[str],
    accept: Callable[[Path, str], Content],
    *,
    progress: bool,
) -> Content:
    """What `accept` makes of the first mirror's file that it takes; the file is kept at `path`.

    Args:
        path: where the file goes, under the name that the mirrors know it by.
        mirrors: base addresses, tried in turn.
        accept: the downloaded file and its address -> its content, or an `InputError`.
        progress: whether to show a progress bar.

    Raises:
        InputError: if no mirror serves it, or the folder cannot be written to.
    """
    import pooch
    import requests

    # Packed as it is: a server must not add an encoding that the client would undo.
    downloader = pooch.HTTPDownloader(progressbar=progress, headers={"Accept-Encoding": "identity"})
    failures = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".download-") as scratch:
            partial = Path(scratch) / path.name
            for mirror in mirrors:
                address = f"{mirror.rstrip('/')}/{path.name}"
                try:
                    downloader(address, str(partial), None)
                    content = accept(partial, address)
                except requests.RequestException as error:
                    failures.append(f"{address}: {error}")
                except InputError as error:
                    failures.append(str(error))
                else:
                    os.replace(partial, path)
                    return content
    except OSError as error:
        raise InputError(
            f"{path.parent}: expected a folder that can be written to, got {error}. "
            f"Set {DATA_DIR_VARIABLE} to a folder that has {path.parent.name}/{path.name}."
        ) from error
    listed = "; ".join(failure.rstrip(".") for failure in failures) or "no mirrors"
    raise InputError(
        f"{path.name}: expected one of the mirrors to serve it, got {listed}. Check the network, "
        f"name another mirror, or set {DATA_DIR_VARIABLE} to a folder that has "
        f"{path.parent.name}/{path.name}."
    )
