"""A data set of images, split for training and testing."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from vpng.checks import finite_scalar
from vpng.errors import expected


class Images(NamedTuple):
    """Flattened images with their labels.

    Attributes:
        train: one image a row, in {0, 1} if binarised and in [0, 1] if not.
        test: the same for the images held out.
        train_labels: the class of each training image.
        test_labels: the class of each test image.
        image_shape: height and width, with d = height x width.
    """

    train: Float[np.ndarray, "n d"]
    test: Float[np.ndarray, "m d"]
    train_labels: Int[np.ndarray, " n"]
    test_labels: Int[np.ndarray, " m"]
    image_shape: tuple[int, int]


def check_threshold(threshold: float | None) -> None:
    """Refuse a threshold that is not None and not in [0, 1)."""
    if threshold is None:
        return
    finite_scalar("threshold", threshold, minimum=0.0, strict=False)
    if threshold >= 1.0:
        raise expected("threshold", "a number below 1, or None for grey values", threshold)


def intensities(
    pixels: np.ndarray, brightest: int, threshold: float | None
) -> Float[np.ndarray, "n d"]:
    """`pixels` in 0..brightest as rows: 1 where pixel / brightest > threshold, else 0.

    A threshold of None keeps the grey values pixel / brightest.
    """
    rows = pixels.reshape(pixels.shape[0], -1)
    if threshold is None:
        return rows.astype(np.float32) / brightest
    return (rows > threshold * brightest).astype(np.float32)
