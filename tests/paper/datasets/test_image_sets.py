"""The image sets: shapes, values, splits; MNIST also from fakes and, where it is, for real."""

import gzip
import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vpng.errors import InputError
from vpng.paper.datasets import Mirrored, load_digits, load_mnist
from vpng.paper.datasets.mnist import MnistFiles


def test_importing_is_light():
    heavy = ("sklearn", "pooch", "pandas", "requests")
    code = f"import sys, vpng.paper.datasets; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_digits():
    digits = load_digits()
    assert digits.train.shape == (1500, 64)
    assert digits.test.shape == (297, 64)
    assert digits.train.dtype == digits.test.dtype == np.float32
    assert set(np.unique(digits.train)) == set(np.unique(digits.test)) == {0.0, 1.0}
    assert digits.train_labels.shape == (1500,)
    assert digits.test_labels.shape == (297,)
    assert set(digits.test_labels) == set(range(10))
    assert digits.image_shape == (8, 8)


def test_grey_digits_agree_with_binary_ones():
    grey, binary = load_digits(threshold=None), load_digits()
    assert grey.train.min() == 0.0
    assert grey.train.max() == 1.0
    np.testing.assert_array_equal(binary.train, grey.train > 0.5)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, float("nan"), "half"])
@pytest.mark.parametrize("load", [load_digits, load_mnist])
def test_wrong_thresholds(load, threshold):
    with pytest.raises(InputError, match="threshold"):
        load(threshold=threshold)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def fake(folder: Path, *contents: bytes) -> MnistFiles:
    """Four small files in the original's format, written to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for position, content in enumerate(contents):
        name = f"file-{position}.gz"
        (folder / name).write_bytes(gzip.compress(content))
        files.append(Mirrored(name, len(content), hashlib.sha256(content).hexdigest()))
    return MnistFiles(*files)


TRAIN = np.array([[[0, 127, 128], [255, 1, 200]], [[3, 4, 5], [6, 7, 8]]])
TEST = 255 - TRAIN[:1]


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("VPNG_DATA_DIR", str(tmp_path))
    return tmp_path / "mnist"


def test_fake_mnist(data):
    files = fake(data, idx(TRAIN), idx(np.array([7, 9])), idx(TEST), idx(np.array([3])))
    images = load_mnist(files=files)
    np.testing.assert_array_equal(images.train, [[0, 0, 1, 1, 0, 1], [0] * 6])
    np.testing.assert_array_equal(images.test, [[1, 1, 0, 0, 1, 0]])
    np.testing.assert_array_equal(images.train_labels, [7, 9])
    np.testing.assert_array_equal(images.test_labels, [3])
    assert images.train.dtype == np.float32
    assert images.image_shape == (2, 3)
    grey = load_mnist(files=files, threshold=None)
    np.testing.assert_allclose(grey.train, TRAIN.reshape(2, 6) / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("position", "content", "message"),
    [
        (0, idx(np.zeros((2, 6))), "file-0.gz: expected unsigned bytes in 3 dimensions"),
        (1, idx(np.zeros(3)), "file-1.gz: expected 2 labels"),
        (2, idx(np.zeros((1, 3, 2))), "file-2.gz: expected images of the training images' shape"),
        (3, b"\x00\x00\x0d\x01\x00\x00\x00\x01" + bytes(4), "file-3.gz: expected unsigned bytes"),
        (3, b"\x00\x01", "file-3.gz: expected an IDX header"),
    ],
)
def test_files_that_do_not_fit(data, position, content, message):
    contents = [idx(TRAIN), idx(np.array([7, 9])), idx(TEST), idx(np.array([3]))]
    contents[position] = content
    with pytest.raises(InputError, match=message):
        load_mnist(files=fake(data, *contents))


def mnist_at_hand() -> Path | None:
    beside = Path(__file__).resolve().parents[4] / "shared" / "data"
    places = [Path(os.environ["VPNG_DATA_DIR"])] if os.environ.get("VPNG_DATA_DIR") else []
    return next((p for p in [*places, beside] if (p / "mnist").is_dir()), None)


@pytest.mark.skipif(
    mnist_at_hand() is None, reason="no MNIST: neither VPNG_DATA_DIR nor ../shared/data has it"
)
def test_real_mnist(monkeypatch):
    monkeypatch.setenv("VPNG_DATA_DIR", str(mnist_at_hand()))
    images = load_mnist(mirrors=())
    assert images.train.shape == (60_000, 784)
    assert images.test.shape == (10_000, 784)
    assert set(np.unique(images.test)) == {0.0, 1.0}
    assert images.image_shape == (28, 28)
    np.testing.assert_array_equal(images.train_labels[:5], [5, 0, 4, 1, 9])
    # The number of bytes from 128 to 255 in each file, counted without this library.
    assert images.train.sum(dtype=np.float64) == 6_221_431
    assert images.test.sum(dtype=np.float64) == 1_052_359
