"""MNIST, the handwritten digits of Section 5.2, from its four original files."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vpng.errors import expected
from vpng.paper.datasets.fetch import Mirrored, fetch
from vpng.paper.datasets.idx import parse_idx
from vpng.paper.datasets.images import Images, check_threshold, intensities

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
"""Where `load_mnist` looks by default, in turn."""

_BRIGHTEST = 255


class MnistFiles(NamedTuple):
    """The four files of the set."""

    train_images: Mirrored
    train_labels: Mirrored
    test_images: Mirrored
    test_labels: Mirrored


MNIST_FILES = MnistFiles(
    train_images=Mirrored(
        "train-images-idx3-ubyte.gz",
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    train_labels=Mirrored(
        "train-labels-idx1-ubyte.gz",
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    test_images=Mirrored(
        "t10k-images-idx3-ubyte.gz",
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    test_labels=Mirrored(
        "t10k-labels-idx1-ubyte.gz",
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
"""The four files with the lengths and checksums of their unpacked content."""


def load_mnist(
    *,
    threshold: float | None = 0.5,
    mirrors: Sequence[str] = MNIST_MIRRORS,
    cache: Path | None = None,
    progress: bool = True,
    files: MnistFiles = MNIST_FILES,
) -> Images:
    """60,000 training and 10,000 test images of 28 x 28 pixels, binarised as in the paper.

    The files are looked for in the subfolder `mnist` of the folder that the environment variable
    VPNG_DATA_DIR names, then in the user's cache; else they are downloaded into the cache.

    Args:
        threshold: pixels brighter than this fraction are 1, the others 0; None keeps grey values.
        mirrors: base addresses of the files, tried in turn.
        cache: the cache folder; None for the user's own.
        progress: whether downloads show a progress bar.
        files: names, lengths and checksums; of use for other sets in the same format.

    Raises:
        InputError: for files that are corrupt or nowhere to be found, or a wrong threshold.
    """
    check_threshold(threshold)

    def read(file: Mirrored, dimensions: int) -> np.ndarray:
        content = fetch(file, folder="mnist", mirrors=mirrors, cache=cache, progress=progress)
        array = parse_idx(file.name, content)
        if array.ndim != dimensions or array.dtype != np.uint8:
            wanted = f"unsigned bytes in {dimensions} dimensions"
            raise expected(file.name, wanted, f"{array.dtype} of shape {array.shape}")
        return array

    def labels(file: Mirrored, images: np.ndarray) -> np.ndarray:
        array = read(file, 1)
        if len(array) != len(images):
            raise expected(file.name, f"{len(images)} labels, one an image", len(array))
        return array.astype(np.int32)

    train, test = read(files.train_images, 3), read(files.test_images, 3)
    if train.shape[1:] != test.shape[1:]:
        raise expected(
            files.test_images.name,
            f"images of the training images' shape {train.shape[1:]}",
            test.shape[1:],
        )
    return Images(
        train=intensities(train, _BRIGHTEST, threshold),
        test=intensities(test, _BRIGHTEST, threshold),
        train_labels=labels(files.train_labels, train),
        test_labels=labels(files.test_labels, test),
        image_shape=(train.shape[1], train.shape[2]),
    )
