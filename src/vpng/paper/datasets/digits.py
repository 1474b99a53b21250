"""The 8 x 8 digits that come with scikit-learn: no network, no files."""

import numpy as np

from vpng.paper.datasets.images import Images, check_threshold, intensities

_NUM_TRAIN = 1500
_BRIGHTEST = 16


def load_digits(*, threshold: float | None = 0.5) -> Images:
    """1,797 handwritten digits of 8 x 8 pixels: the first 1,500 to train, the last 297 to test.

    Args:
        threshold: pixels brighter than this fraction are 1, the others 0; None keeps grey values.

    Raises:
        InputError: for a threshold outside [0, 1).
    """
    check_threshold(threshold)
    from sklearn import datasets

    pixels, classes = map(np.asarray, datasets.load_digits(return_X_y=True))
    images = intensities(pixels, _BRIGHTEST, threshold)
    labels = classes.astype(np.int32)
    return Images(
        train=images[:_NUM_TRAIN],
        test=images[_NUM_TRAIN:],
        train_labels=labels[:_NUM_TRAIN],
        test_labels=labels[_NUM_TRAIN:],
        image_shape=(8, 8),
    )
