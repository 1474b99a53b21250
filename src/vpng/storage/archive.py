"""Settings and arrays in one file: a zip with a header in JSON, no pickle.

`header.json` has the format's name and version, the library's version, the kind of thing, its
settings, and the SHA-256 of `arrays.npz`; `header.sha256` has that of the header. Reading checks
all of them before anything is believed, and runs no code from the file.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from vpng.errors import InputError, expected
from vpng.packed import DAMAGED, read_member
from vpng.storage.files import write_atomically
from vpng.version import __version__

FORMAT_VERSION = 1


class Format(StrEnum):
    """What a file is for."""

    MODEL = "vpng.model"
    CHECKPOINT = "vpng.checkpoint"


def write_archive(
    path: Path,
    kind: str,
    settings: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    *,
    form: Format = Format.MODEL,
) -> Path:
    """Write a file, whole or not at all.

    Raises:
        InputError: for a folder that cannot be written to.
    """
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    content = packed.getbuffer()
    header = json.dumps(
        {
            "format": form,
            "version": FORMAT_VERSION,
            "library": __version__,
            "kind": kind,
            "settings": settings,
            "sha256": hashlib.sha256(content).hexdigest(),
        },
        allow_nan=False,
        indent=1,
    ).encode()

    def write(target: Path) -> None:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr("header.json", header)
            archive.writestr("header.sha256", hashlib.sha256(header).hexdigest())
            archive.writestr("arrays.npz", content)

    try:
        return write_atomically(path, write)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}.") from error


def read_archive(
    path: Path, kind: str, *, form: Format = Format.MODEL
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The settings and arrays of a file.

    Raises:
        InputError: for a file that is damaged, foreign, of another kind or of a later version.
    """
    try:
        # Members are stored as they are: none is larger than the file.
        most = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            header, digest, content = (
                read_member(archive, name, most=most)
                for name in ("header.json", "header.sha256", "arrays.npz")
            )
    except DAMAGED as error:
        raise expected(str(path), f"a {form} saved by vpng", f"another file: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if hashlib.sha256(header).hexdigest().encode() != digest:
        raise expected(str(path), "a header with its own checksum", "another: it is damaged")
    try:
        known = json.loads(header)
        name, version = known["format"], known["version"]
        found, settings, checksum = known["kind"], known["settings"], known["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise expected(str(path), "a header as vpng writes it", f"the error {error}") from error
    if name != form or version != FORMAT_VERSION:
        wanted = f"the format {form} of version {FORMAT_VERSION}"
        raise expected(str(path), wanted, f"{name} of version {version}")
    if found != kind:
        raise expected(str(path), f"a {kind}", f"a {found}")
    if hashlib.sha256(content).hexdigest() != checksum:
        raise expected(str(path), f"arrays with SHA-256 {checksum}", "others: it is damaged")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return settings, {key: arrays[key] for key in arrays.files}
    except ValueError as error:
        raise expected(str(path), "plain arrays", f"others: {error}") from error
