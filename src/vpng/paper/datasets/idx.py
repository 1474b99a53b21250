"""The IDX format of MNIST: a magic number, the sizes, then the numbers, all big-endian.

Bytes 0 and 1 are zero, byte 2 is the type of the numbers, byte 3 the number m of dimensions; then
come m sizes, unsigned 32-bit, and the numbers with the last dimension fastest.
"""

import math
import struct
import sys

import numpy as np

from vpng.errors import expected

_TYPES = {
    0x08: np.dtype(">u1"),
    0x09: np.dtype(">i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
_MAX_DIMENSIONS = 32


def parse_idx(name: str, content: bytes) -> np.ndarray:
    """The array that the bytes of an IDX file describe, in the machine's byte order.

    The sizes are compared with the bytes at hand before anything is allocated.

    Args:
        name: what errors call the file.
        content: the whole file, unpacked.

    Raises:
        InputError: for a wrong magic number, an unknown type, or too few or too many bytes.
    """
    if len(content) < 4:
        raise expected(name, "an IDX header of at least 4 bytes", f"{len(content)} bytes")
    if content[:2] != b"\0\0":
        raise expected(name, "an IDX file, which starts with two zero bytes", content[:4].hex(" "))
    code, dimensions = content[2], content[3]
    if code not in _TYPES:
        known = ", ".join(f"0x{known:02x}" for known in _TYPES)
        raise expected(name, f"an IDX type code among {known}", f"0x{code:02x}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise expected(name, f"between 1 and {_MAX_DIMENSIONS} dimensions", dimensions)
    start = 4 + 4 * dimensions
    if len(content) < start:
        wanted = f"a header of {start} bytes for {dimensions} dimensions"
        raise expected(name, wanted, f"{len(content)} bytes")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    dtype = _TYPES[code]
    size = start + math.prod(shape) * dtype.itemsize
    listed = " x ".join(map(str, shape))
    if math.prod(max(length, 1) for length in shape) > sys.maxsize // dtype.itemsize:
        raise expected(name, "sizes that an array can have", listed)
    if len(content) != size:
        raise expected(name, f"{size} bytes for {listed} numbers", f"{len(content)} bytes")
    numbers = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return numbers.astype(dtype.newbyteorder("="), copy=False)
