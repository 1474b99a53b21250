"""Model files: what goes in comes out, and nothing else is believed."""

import hashlib
import io
import json
import zipfile

import numpy as np
import pytest

from vpng.errors import InputError
from vpng.storage.archive import read_archive, write_archive

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "y"])}
SETTINGS = {"width": 3, "rate": None}


@pytest.fixture
def saved(tmp_path):
    return write_archive(tmp_path / "model.vpng", "Thing", SETTINGS, ARRAYS)


def test_what_goes_in_comes_out(saved):
    settings, arrays = read_archive(saved, "Thing")
    assert settings == SETTINGS
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def rewritten(path, changes):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, **changes(members)}.items():
            if content is not None:
                archive.writestr(name, content)


def other_arrays(members):
    packed = io.BytesIO()
    np.savez(packed, a=np.zeros(6))
    return {"arrays.npz": packed.getvalue()}


DAMAGE = {
    "other arrays": (other_arrays, "arrays with SHA-256"),
    "other header": (lambda m: {"header.json": m["header.json"] + b" "}, "its own checksum"),
    "no arrays": (lambda m: {"arrays.npz": None}, "saved by vpng"),
}


@pytest.mark.parametrize(("changes", "message"), DAMAGE.values(), ids=DAMAGE)
def test_changed_files_are_refused(saved, changes, message):
    rewritten(saved, changes)
    with pytest.raises(InputError, match=message):
        read_archive(saved, "Thing")


def test_every_flipped_byte_is_noticed(saved):
    """A byte anywhere in the stored members; zip's own directory may be harmlessly different."""
    whole = saved.read_bytes()
    with zipfile.ZipFile(saved) as archive:
        starts = {info.filename: info for info in archive.infolist()}
        content = archive.read("arrays.npz")
    place = whole.index(content)
    for offset in range(0, len(content), 97):
        damaged = bytearray(whole)
        damaged[place + offset] ^= 0xFF
        saved.write_bytes(damaged)
        with pytest.raises(InputError):
            read_archive(saved, "Thing")
    assert len(starts) == 3


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and nothing more"])
def test_foreign_files_are_refused(tmp_path, content):
    path = tmp_path / "model.vpng"
    path.write_bytes(content)
    with pytest.raises(InputError, match="saved by vpng"):
        read_archive(path, "Thing")
    with pytest.raises(InputError, match="cannot be read"):
        read_archive(tmp_path / "missing", "Thing")


def test_a_truncated_file_is_refused(saved):
    saved.write_bytes(saved.read_bytes()[:-40])
    with pytest.raises(InputError, match="saved by vpng"):
        read_archive(saved, "Thing")


def test_another_kind_and_a_later_version_are_refused(saved):
    with pytest.raises(InputError, match="expected a Other, got a Thing"):
        read_archive(saved, "Other")

    def later(members):
        header = json.dumps({**json.loads(members["header.json"]), "version": 99}).encode()
        return {"header.json": header, "header.sha256": hashlib.sha256(header).hexdigest()}

    rewritten(saved, later)
    with pytest.raises(InputError, match="of version 99"):
        read_archive(saved, "Thing")


def test_a_pickle_is_not_unpacked(saved):
    def pickled(members):
        packed = io.BytesIO()
        np.savez(packed, a=np.array([{"a": 1}], dtype=object))
        header = json.loads(members["header.json"])
        header["sha256"] = hashlib.sha256(packed.getvalue()).hexdigest()
        text = json.dumps(header).encode()
        digest = hashlib.sha256(text).hexdigest()
        return {"header.json": text, "header.sha256": digest, "arrays.npz": packed.getvalue()}

    rewritten(saved, pickled)
    with pytest.raises(InputError, match="plain arrays"):
        read_archive(saved, "Thing")


def test_objects_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="pickle"):
        write_archive(tmp_path / "m", "Thing", {}, {"a": np.array([{}], dtype=object)})
    with pytest.raises(InputError, match="cannot be written"):
        write_archive(tmp_path / "none" / "m", "Thing", {}, {})
