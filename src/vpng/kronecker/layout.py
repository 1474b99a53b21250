"""Where the entries of an array sit after transposes, reshapes and broadcasts.

An array that is made of the entries of a parameter is described by an *index*: an integer array of
its shape whose entries are positions in the ravelled parameter. Layout primitives act on the index
as they act on the array, so two expressions hold the same entries if their indices are equal. NumPy
views keep broadcasts free.
"""

from itertools import permutations
from typing import Any

import numpy as np

Index = np.ndarray

LAYOUTS = frozenset(
    {"transpose", "reshape", "squeeze", "broadcast_in_dim", "convert_element_type", "copy"}
)


def identity(shape: tuple[int, ...]) -> Index:
    """The index of a parameter itself."""
    return np.arange(int(np.prod(shape))).reshape(shape)


def relabel(name: str, params: dict[str, Any], index: Index, shape: tuple[int, ...]) -> Index:
    """The index after a layout primitive whose output has `shape`."""
    if name == "transpose":
        return index.transpose(params["permutation"])
    if name == "broadcast_in_dim":
        expanded = [1] * len(shape)
        for axis, size in zip(params["broadcast_dimensions"], index.shape, strict=True):
            expanded[axis] = size
        return np.broadcast_to(index.reshape(expanded), shape)
    return index.reshape(shape)


def equal(left: Index, right: Index, shape: tuple[int, ...]) -> bool:
    """Whether two indices agree once broadcast to `shape`."""
    left, right = np.broadcast_to(left, shape), np.broadcast_to(right, shape)
    varying = tuple(
        slice(None) if a or b else slice(0, 1)
        for a, b in zip(left.strides, right.strides, strict=True)
    )
    return bool(np.array_equal(left[varying], right[varying]))


def permutation_to(matrix: Index, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """The order of axes that turns a parameter of `shape` into `matrix`; None if there is none."""
    if matrix.size != int(np.prod(shape)):
        return None
    whole = identity(shape)
    for order in permutations(range(len(shape))):
        if np.array_equal(whole.transpose(order).reshape(matrix.shape), matrix):
            return order
    return None
