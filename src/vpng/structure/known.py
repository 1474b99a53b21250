"""Values of a traced program that are known where it is looked at, in NumPy.

Nothing is computed before it is asked for, which is for indices alone, and nothing is compiled.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

Known = Callable[[], np.ndarray]


class UnknownError(Exception):
    """A value depends on inputs of the program."""


def unknown() -> np.ndarray:
    """The value of an input.

    Raises:
        UnknownError: always.
    """
    raise UnknownError


def constant(value: Any) -> Known:
    """A value that is there."""
    return lambda: np.asarray(value)


class Later:
    """The outputs of an equation, computed when the first of them is asked for."""

    def __init__(self, equation: Any, inputs: Sequence[Known]) -> None:
        self.equation = equation
        self.inputs = inputs
        self.found: list[np.ndarray] | None = None

    def output(self, place: int) -> Known:
        """One of them."""

        def value() -> np.ndarray:
            if self.found is None:
                self.found = evaluate(self.equation, [given() for given in self.inputs])
            return self.found[place]

        return value


def evaluate(equation: Any, values: list[np.ndarray]) -> list[np.ndarray]:
    """The outputs of an equation."""
    name, params = equation.primitive.name, equation.params
    rule = moving_rule(name, params) or _ELEMENTWISE.get(name)
    if rule is not None:
        return [np.asarray(rule(*values))]
    if name == "concatenate":
        return [np.concatenate(values, params["dimension"])]
    if name == "convert_element_type":
        return [values[0].astype(params["new_dtype"])]
    if name == "iota":
        return [_iota(params)]
    if name == "gather":
        return [gathered(values[0], values[1], params["dimension_numbers"], params["slice_sizes"])]
    with jax.ensure_compile_time_eval():
        primitive = equation.primitive
        found = primitive.bind(*values, **primitive.get_bind_params(params))
    return [np.asarray(leaf) for leaf in (found if primitive.multiple_results else [found])]


def moving_rule(name: str, params: dict[str, Any]) -> Callable[[np.ndarray], np.ndarray] | None:
    """What a primitive that only moves, copies or drops elements of one array does to them."""
    if name in ("squeeze", "expand_dims", "reshape", "broadcast_in_dim"):
        return _SHAPES[name](params)
    if name == "transpose":
        return lambda array: np.transpose(array, params["permutation"])
    if name == "rev":
        return lambda array: np.flip(array, params["dimensions"])
    if name == "slice":
        bounds = (params["start_indices"], params["limit_indices"])
        strides = params["strides"] or (1,) * len(bounds[0])
        part = tuple(slice(*each) for each in zip(*bounds, strides, strict=True))
        return lambda array: array[part]
    return None


def _broadcast(params: dict[str, Any]) -> Callable[[np.ndarray], np.ndarray]:
    shape, places = params["shape"], params["broadcast_dimensions"]

    def broadcast(array: np.ndarray) -> np.ndarray:
        own = [1] * len(shape)
        for place, length in zip(places, array.shape, strict=True):
            own[place] = length
        return np.broadcast_to(array.reshape(own), shape)

    return broadcast


_SHAPES: dict[str, Callable[[dict[str, Any]], Callable[[np.ndarray], np.ndarray]]] = {
    "squeeze": lambda params: lambda array: np.squeeze(array, tuple(params["dimensions"])),
    "expand_dims": lambda params: lambda array: np.expand_dims(array, tuple(params["dimensions"])),
    "reshape": lambda params: lambda array: array.reshape(params["new_sizes"]),
    "broadcast_in_dim": _broadcast,
}

_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "max": np.maximum,
    "min": np.minimum,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "not": np.invert,
    "select_n": lambda which, *cases: np.choose(which.astype(int), cases),
    "clamp": lambda low, value, high: np.clip(value, low, high),
    "copy": np.asarray,
}


def _iota(params: dict[str, Any]) -> np.ndarray:
    shape, dimension = params["shape"], params["dimension"]
    own = [1] * len(shape)
    own[dimension] = shape[dimension]
    return np.broadcast_to(np.arange(shape[dimension], dtype=params["dtype"]).reshape(own), shape)


def gathered(
    operand: np.ndarray, indices: np.ndarray, numbers: Any, slice_sizes: Sequence[int]
) -> np.ndarray:
    """What XLA's gather takes from an array; indices out of bounds are moved inside.

    Args:
        operand: the array.
        indices: where slices start, the coordinates along the last axis.
        numbers: which axes are which, a `GatherDimensionNumbers`.
        slice_sizes: of every axis of the operand.
    """
    batch = indices.shape[:-1]
    hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [axis for axis in range(operand.ndim) if axis not in hidden]
    starts = {axis: indices[..., k] for k, axis in enumerate(numbers.start_index_map)}
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for axis, place in pairs:
        own = [1] * len(batch)
        own[place] = batch[place]
        starts[axis] = np.broadcast_to(np.arange(batch[place]).reshape(own), batch)

    def along(axis: int) -> np.ndarray:
        most = operand.shape[axis] - slice_sizes[axis]
        start = np.clip(starts.get(axis, np.zeros(batch, int)), 0, most)
        start = start.reshape(*batch, *(1,) * len(kept))
        if axis not in kept:
            return start
        after = len(kept) - kept.index(axis) - 1
        return start + np.arange(slice_sizes[axis]).reshape(-1, *(1,) * after)

    found = operand[tuple(along(axis) for axis in range(operand.ndim))]
    found = np.broadcast_to(found, (*batch, *(slice_sizes[axis] for axis in kept)))
    return np.moveaxis(found, range(len(batch), found.ndim), numbers.offset_dims)
