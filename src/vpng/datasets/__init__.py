"""Data sets, found on disk or downloaded once; what a loader needs is imported when it runs."""

from vpng.datasets.digits import load_digits
from vpng.datasets.fetch import Mirrored
from vpng.datasets.idx import parse_idx
from vpng.datasets.images import Images
from vpng.datasets.mnist import MNIST_FILES, MNIST_MIRRORS, load_mnist

__all__ = [
    "MNIST_FILES",
    "MNIST_MIRRORS",
    "Images",
    "Mirrored",
    "load_digits",
    "load_mnist",
    "parse_idx",
]
