"""Checks at the boundary: concrete values are refused with a clear word, traced ones pass."""

import math
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vpng.errors import InputError, expected
from vpng.numerics.trees import is_key, is_traced


def positive_integer(name: str, value: Any) -> int:
    """`value` as an int of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise expected(name, "a whole number of at least 1", repr(value))
    return int(value)


def finite_scalar(name: str, value: Any, *, minimum: float, strict: bool) -> None:
    """Refuse a concrete `value` that is not finite or lies below `minimum`."""
    if is_traced(value):
        return
    wanted = f"a finite number {'above' if strict else 'of at least'} {minimum:g}"
    if isinstance(value, bool) or not isinstance(value, Real | np.ndarray | np.generic | jax.Array):
        raise expected(name, wanted, repr(value))
    shape = getattr(value, "shape", ())
    if shape:
        raise expected(name, wanted, f"an array of shape {shape}")
    number = float(value)
    if not math.isfinite(number) or number < minimum or (strict and number == minimum):
        raise expected(name, wanted, repr(number))


def damping_value(value: Any) -> None:
    """Refuse a negative or non-finite damping."""
    finite_scalar("damping", value, minimum=0.0, strict=False)


def floating_type(parameters: Any) -> jnp.dtype:
    """The type in which a tree of parameters is solved for; JAX's default for an empty tree."""
    leaves = jax.tree.leaves(parameters)
    return jnp.result_type(*leaves) if leaves else jnp.result_type(float)


def single_or_double(name: str, parameters: Any) -> None:
    """Refuse leaves of fewer than 32 bits, which no factorisation takes."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        where = name + jax.tree_util.keystr(path)
        dtype = jnp.result_type(leaf)
        if not jnp.issubdtype(dtype, jnp.floating):
            raise expected(where, "a floating array", f"dtype {dtype}")
        if jnp.finfo(dtype).bits < 32:
            raise expected(where, "an array of float32 or float64", f"dtype {dtype}")


def learning_rate(value: Any) -> None:
    """Refuse a learning rate of zero, below zero or not finite; schedules pass."""
    if not callable(value):
        finite_scalar("learning_rate", value, minimum=0.0, strict=True)


def finite_array(name: str, value: Any) -> jax.Array:
    """`value` as a floating array with no NaN and no infinity."""
    array = numeric_array(name, value)
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        array = array.astype(jnp.result_type(float))
    if not is_traced(array) and not _all_finite(array):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(np.asarray(array)))[0])
        bad = np.asarray(array)[where]
        raise expected(name, "finite numbers only", f"{bad} at index {where}")
    return array


def _all_finite(array: jax.Array) -> bool:
    # Also inside a function that is being traced, which may close over arrays that are known.
    with jax.ensure_compile_time_eval():
        return bool(jnp.isfinite(array).all())


def matrix(name: str, value: Any, *, columns: int | None = None) -> jax.Array:
    """`value` as a finite two-dimensional array, with `columns` columns if given."""
    array = finite_array(name, value)
    if array.ndim != 2 or (columns is not None and array.shape[1] != columns):
        wanted = f"a matrix of shape (n, {'d' if columns is None else columns})"
        raise expected(name, wanted, f"shape {array.shape}")
    if 0 in array.shape:
        raise expected(name, "at least one row and one column", f"shape {array.shape}")
    return array


def binary_labels(name: str, value: Any, *, length: int) -> jax.Array:
    """`value` as a vector of zeros and ones of the given length."""
    array = finite_array(name, value)
    if array.shape != (length,):
        raise expected(name, f"a vector of {length} labels", f"shape {array.shape}")
    if not is_traced(array):
        outside = np.setdiff1d(np.unique(np.asarray(array)), [0, 1])
        if outside.size:
            raise expected(name, "labels in {0, 1}", f"the value {outside[0]:g}")
    return array


def counts(name: str, value: Any) -> jax.Array:
    """`value` as an array of non-negative whole numbers."""
    array = finite_array(name, value)
    if not is_traced(array):
        host = np.asarray(array)
        wrong = (host < 0) | (host != np.floor(host))
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise expected(name, "non-negative whole numbers", f"{host[where]:g} at index {where}")
    return array


def of_kind(name: str, value: Any, kind: type | UnionType, wanted: str) -> None:
    """Refuse a `value` of another type, for instance a choice's name instead of the choice."""
    if not isinstance(value, kind):
        raise expected(name, wanted, repr(value))


def random_key(name: str, value: Any) -> jax.Array:
    """`value` as a single typed key; JAX's older keys of raw numbers are taken too."""
    dtype = getattr(value, "dtype", None)
    if is_key(value) and value.shape == ():
        return value
    if dtype == jnp.uint32 and value.shape == jax.random.key_data(jax.random.key(0)).shape:
        return jax.random.wrap_key_data(value)
    came = repr(value) if dtype is None else f"an array of shape {value.shape} and dtype {dtype}"
    raise expected(name, "a single key such as jax.random.key(0)", came)


def data_tree(name: str, data: Any) -> int:
    """The number of data: the leading length that every array of `data` shares."""
    leaves = jax.tree_util.tree_leaves_with_path(data)
    if not leaves:
        raise expected(name, "a pytree with at least one array", "an empty one")
    lengths: dict[str, int] = {}
    for path, leaf in leaves:
        label = name + jax.tree_util.keystr(path)
        array = numeric_array(label, leaf)
        if array.ndim == 0:
            raise expected(label, "an array with the data along its first axis", "a scalar")
        if jnp.issubdtype(array.dtype, jnp.inexact):
            finite_array(label, array)
        lengths[label] = array.shape[0]
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{label} has {length}" for label, length in lengths.items())
        raise expected(name, "arrays of one length along the first axis", listed)
    length = next(iter(lengths.values()))
    if length == 0:
        raise expected(name, "at least one datum", "none")
    return length


def output_folder(path: Path) -> Path:
    """`path` made into a folder that can be written to."""
    try:
        if path.exists() and not path.is_dir():
            raise expected("--out", "a folder or a path that does not exist", f"the file {path}")
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".vpng-write-probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"--out: cannot write to {path}: {error.strerror or error}.") from error
    return path


def numeric_array(name: str, value: Any) -> jax.Array:
    """`value` as an array of real numbers or booleans."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        kind = np.asarray(value, dtype=object)
        raise expected(
            name, "an array of numbers", f"{type(value).__name__} of shape {kind.shape}"
        ) from error
    if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool):
        raise expected(name, "an array of real numbers", f"dtype {array.dtype}")
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise expected(name, "an array of real numbers", f"dtype {array.dtype}")
    return array
