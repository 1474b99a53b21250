"""Members of zip files, read into memory: nothing is ever unpacked to the disk."""

import lzma
import struct
import zipfile
import zlib

DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    KeyError,  # no such member
    NotImplementedError,  # a method of compression, or a version, that is not known
    RuntimeError,  # encrypted
    ValueError,  # names and sizes that make no sense
)
"""What a file that is no zip, or a damaged or foreign one, may raise."""


def read_member(archive: zipfile.ZipFile, name: str, *, most: int | None = None) -> bytes:
    """The content of a member.

    Args:
        archive: an open zip file.
        name: of the member; a path in it is only a name.
        most: bytes that it may have, so that a small file cannot fill the memory; None for any.

    Raises:
        BadZipFile: if it has more, or fewer than it says.
    """
    info = archive.getinfo(name)
    if most is not None and info.file_size > most:
        raise zipfile.BadZipFile(f"{name} says it has {info.file_size} bytes")
    with archive.open(info) as member:
        content = member.read() if most is None else member.read(most + 1)
    if len(content) != info.file_size:
        raise zipfile.BadZipFile(f"{name} has not the {info.file_size} bytes that it says")
    return content
