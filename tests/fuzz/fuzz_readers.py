"""Files of data: IDX, ratings as CSV and DAT, zip files of them, titles."""

import hashlib
import io
import os
import struct
import warnings
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
from fuzz_target import Target, damaged, refused, stays_inside
from hypothesis import strategies as st

from vpng.paper.datasets import read_ratings, read_titles
from vpng.paper.datasets.idx import parse_idx
from vpng.paper.datasets.movielens import EDITIONS, Edition, load_movielens

# IDX

CODES = {0x08: "B", 0x09: "b", 0x0B: "h", 0x0C: "i", 0x0D: "f", 0x0E: "d"}


@st.composite
def idx_files(draw) -> bytes:
    code = draw(st.sampled_from(sorted(CODES)) | st.integers(0, 255))
    shape = draw(st.lists(st.integers(0, 5) | st.integers(0, 2**32 - 1), max_size=4))
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)
    size = min(int(np.prod([float(n) for n in shape])), 200) * struct.calcsize(CODES.get(code, "B"))
    body = draw(st.binary(min_size=size, max_size=size))
    return draw(damaged(header + body))


def check_idx(content: bytes, folder: Path) -> None:
    bad, array = refused(lambda: parse_idx("file", content))
    if bad:
        return
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    letter = CODES[content[2]]
    numbers = struct.unpack(f">{int(np.prod(shape))}{letter}", content[4 + 4 * dimensions :])
    assert array.shape == shape
    np.testing.assert_array_equal(array.ravel(), np.array(numbers, letter))


# Ratings as CSV and DAT

FIELDS = ("userId", "movieId", "rating", "timestamp")


@st.composite
def rating_files(draw) -> tuple[str, bytes, list[tuple] | None]:
    """The name, the content, and the ratings in it if nothing is wrong with it."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 2**31 - 1), st.integers(0, 9), st.integers(1, 10), st.integers(0, 9)
            ),
            min_size=1,
            max_size=6,
        )
    )
    rows = [(user, item, stars / 2, when) for user, item, stars, when in rows]
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    if draw(st.booleans()):
        name, lines = "ratings.dat", ["::".join(map(str, row)) for row in rows]
    else:
        name = "ratings.csv"
        order = draw(st.permutations(range(4)))
        lines = [",".join(str(line[i]) for i in order) for line in [FIELDS, *rows]]
    content = (newline.join(lines) + newline * draw(st.booleans())).encode()
    if draw(st.booleans()):
        return name, content, rows
    strange = st.sampled_from(
        [
            "nan",
            "inf",
            "-1",
            "1e3",
            "",
            '"',
            '"1"',
            " 1",
            "9" * 30,
            "4.7",
            "\x00",
            "é",
            "0x1",
            "1_0",
        ]
    )
    text = content.decode()
    if draw(st.booleans()):
        part = draw(st.sampled_from(text.replace("::", ",").replace("\n", ",").split(",")))
        content = text.replace(part, draw(strange), 1).encode() if part else content
    return name, draw(damaged(content)), None


def check_ratings(case: tuple, folder: Path) -> None:
    name, content, rows = case
    (folder / name).write_bytes(content)
    bad, ratings = refused(lambda: read_ratings(folder / name))
    if rows is not None:
        assert not bad
        wanted = {(user, item): stars for user, item, stars, _ in rows}
        found = zip(ratings.users.tolist(), ratings.items.tolist(), strict=True)
        assert dict(zip(found, ratings.stars.tolist(), strict=True)) == wanted
    elif not bad:
        assert len(ratings) > 0
        assert (ratings.users >= 0).all()
        assert (ratings.items >= 0).all()
        assert np.isin(ratings.stars, np.arange(1, 11) / 2).all()
        pairs = set(zip(ratings.users.tolist(), ratings.items.tolist(), strict=True))
        assert len(pairs) == len(ratings)


# Zip files of ratings

MEMBER = "small/ratings.csv"
CSV = b"userId,movieId,rating,timestamp\n7,3,4.5,10\n1,2,0.5,11\n7,2,5.0,12\n"
NAMES = (MEMBER, "../escaped", "/tmp/vpng-escaped", "small/../../escaped", "a" * 200, "C:\\x", "")


@st.composite
def zip_files(draw) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as target:
        warnings.simplefilter("ignore")
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=4)):
            info = zipfile.ZipInfo(name or "x")
            if draw(st.booleans()):
                info.external_attr = 0o120777 << 16  # a symbolic link
            content = draw(st.sampled_from([CSV, b"/etc/passwd", b"", CSV * 3]))
            kind = draw(
                st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
            )
            target.writestr(info, content, kind)
    content = bytearray(buffer.getvalue())
    for place in (6, 8):  # flags (encryption), method, of the first entry and the directory's first
        if draw(st.integers(0, 9)) == 0:
            value = draw(st.integers(0, 255))
            for signature, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
                found = content.find(signature)
                if found >= 0:
                    content[found + place + shift] = value
    return draw(damaged(bytes(content)))


def check_zip(content: bytes, folder: Path) -> None:
    checksum = "sha256:" + hashlib.sha256(content).hexdigest()
    (folder / "small.zip").write_bytes(content)
    environment = {"VPNG_DATA_DIR": str(folder)}
    with (
        mock.patch.dict(EDITIONS, {"small": Edition(checksum, MEMBER, 1)}),
        mock.patch.dict(os.environ, environment),
        stays_inside(folder),
    ):
        bad, ratings = refused(lambda: load_movielens("small", progress=False))
    assert os.listdir(folder) == ["small.zip"]
    assert not Path("/tmp/vpng-escaped").exists()
    if not bad:
        assert set(ratings.users.tolist()) <= {7, 1}


# Titles

TITLES = b'movieId,title,genres\n1,Toy,x\n2,"A, B",y\n'


def check_titles(case: tuple[str, bytes], folder: Path) -> None:
    name, content = case
    (folder / name).write_bytes(content)
    bad, titles = refused(lambda: read_titles(folder / name))
    if content == TITLES and name.endswith("csv"):
        assert titles == {1: "Toy", 2: "A, B"}
    elif not bad:
        assert all(isinstance(key, int) and isinstance(text, str) for key, text in titles.items())


TARGETS = {
    "idx": Target(idx_files(), check_idx, 3.0),
    "ratings": Target(rating_files(), check_ratings, 4.0),
    "zip": Target(zip_files(), check_zip, 3.0),
    "titles": Target(
        st.tuples(
            st.sampled_from(["movies.csv", "movies.dat"]),
            damaged(TITLES) | damaged(b"1::Toy::x\n2::B::y\n") | st.binary(max_size=40),
        ),
        check_titles,
        1.5,
    ),
}
