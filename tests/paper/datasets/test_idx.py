"""The IDX reader: what was written is read back, everything else is refused."""

import contextlib
import struct
import tracemalloc

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vpng.errors import InputError
from vpng.paper.datasets import parse_idx

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def encode(array: np.ndarray) -> bytes:
    kind = array.dtype.newbyteorder("=").str[1:]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, CODES[kind], array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def arrays():
    shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
    return st.sampled_from(sorted(CODES)).flatmap(lambda kind: hnp.arrays(kind, shapes))


@given(arrays())
def test_round_trip(array):
    read = parse_idx("file", encode(array))
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    np.testing.assert_array_equal(read, array)


@given(arrays(), st.data())
@settings(max_examples=200)
def test_every_truncation_is_refused(array, data):
    content = encode(array)
    kept = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(InputError, match=r"^file: expected .* got"):
        parse_idx("file", content[:kept])


def test_truncation_at_every_offset():
    content = encode(np.arange(12, dtype="i2").reshape(2, 3, 2))
    for kept in range(len(content)):
        with pytest.raises(InputError, match=f"got {kept} bytes"):
            parse_idx("file", content[:kept])


@given(arrays(), st.binary(min_size=1, max_size=8))
def test_trailing_bytes_are_refused(array, extra):
    with pytest.raises(InputError, match="bytes for"):
        parse_idx("file", encode(array) + extra)


@given(st.binary(max_size=64))
def test_any_bytes_give_an_array_or_an_input_error(content):
    with contextlib.suppress(InputError):
        parse_idx("file", content)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"\x01\x00\x08\x01", "two zero bytes"),
        (b"\x1f\x8b\x08\x08", "two zero bytes"),
        (b"\x00\x00\x0a\x01", "type code.*got 0x0a"),
        (b"\x00\x00\x00\x01", "type code.*got 0x00"),
        (b"\x00\x00\x08\x00", "dimensions, got 0"),
        (b"\x00\x00\x08\xff", "dimensions, got 255"),
    ],
)
def test_wrong_headers(header, message):
    with pytest.raises(InputError, match=message):
        parse_idx("file", header + bytes(2000))


def test_huge_declared_sizes_allocate_nothing():
    header = struct.pack(">BBBB4I", 0, 0, 0x0E, 4, *[2**32 - 1] * 4)
    tracemalloc.start()
    with pytest.raises(InputError, match="sizes that an array can have, got 4294967295 x"):
        parse_idx("file", header + bytes(8))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
