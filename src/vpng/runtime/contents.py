"""What functions read, in a form that can be compared: equal contents compute the same.

Code, captured values, defaults, attributes, and the globals that code names, down to numbers,
strings and arrays. Arrays of JAX never change and stand for themselves, those of NumPy for their
entries. The code of installed libraries does not change while a process lives. Whatever else is met
(a generator of random numbers, an open file, a module with a clock) has contents that nobody knows.
"""

import enum
import hashlib
import types
import weakref
from collections.abc import Hashable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from vpng.numerics.trees import is_traced

_LIBRARIES = frozenset(
    {
        *("abc", "builtins", "collections", "contextlib", "dataclasses", "enum", "functools"),
        *("itertools", "math", "operator", "types", "typing"),
        *("equinox", "flax", "funsor", "jax", "jaxlib", "jaxtyping", "lineax", "ml_dtypes"),
        *("numpy", "numpyro", "opt_einsum", "optax", "scipy", "tensorflow_probability", "vpng"),
    }
)
"""Packages without a state that a model could read, but for random numbers."""

_MOST = 50_000
"""Objects that are gone through."""

_PLAIN = (
    *(bool, int, float, complex, str, bytes, type(None), type(...)),
    *(np.dtype, range, slice, enum.Enum),
)
_OF_CLASSES = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Contents(NamedTuple):
    """What was found.

    Attributes:
        key: equal for equal contents.
        held: the objects that the key knows by their identity, kept alive.
    """

    key: Hashable
    held: list[Any]


class _NotKnownError(Exception):
    pass


def contents(*things: Any) -> Contents | None:
    """What `things` hold and read; None if that cannot be known."""
    walk = _Walk()
    try:
        return Contents(tuple(map(walk.of, things)), walk.held)
    except (_NotKnownError, RecursionError):
        return None


class _Walk:
    """Through objects, each once.

    Attributes:
        held: those that were met.
    """

    def __init__(self) -> None:
        self.held: list[Any] = []
        self._met: dict[int, int] = {}

    def of(self, thing: Any) -> Hashable:
        if isinstance(thing, _PLAIN):
            return type(thing), repr(thing)
        if is_traced(thing) or len(self.held) > _MOST:
            raise _NotKnownError
        if isinstance(thing, np.ndarray | np.generic):
            return _of_numbers(np.asarray(thing))
        if id(thing) in self._met:
            return "met", self._met[id(thing)]
        self._met[id(thing)] = len(self.held)
        self.held.append(thing)
        return self._of_other(thing)

    def _of_other(self, thing: Any) -> Hashable:
        if isinstance(thing, jax.Array | types.CodeType):
            return type(thing).__name__, id(thing)
        if isinstance(thing, dict | types.MappingProxyType):
            return type(thing), self._each(part for item in thing.items() for part in item)
        if isinstance(thing, list | tuple):
            return type(thing), self._each(thing)
        if isinstance(thing, set | frozenset):
            if not all(isinstance(part, str | int) for part in thing):
                raise _NotKnownError
            return type(thing), tuple(sorted(map(repr, thing)))
        if isinstance(thing, partial):
            return partial, self._each([thing.func, thing.args, thing.keywords])
        if isinstance(thing, types.MethodType):
            return types.MethodType, self._each([thing.__func__, thing.__self__])
        if isinstance(thing, types.FunctionType):
            return self._of_function(thing)
        if isinstance(thing, types.BuiltinFunctionType):
            return _of_builtin(thing)
        if isinstance(thing, type):
            return self._of_class(thing)
        return self._of_object(thing)

    def _each(self, things: Iterable[Any]) -> tuple:
        return tuple(map(self.of, things))

    def _of_function(self, function: types.FunctionType) -> Hashable:
        cells = [self._of_cell(cell) for cell in function.__closure__ or ()]
        given = self._each([function.__defaults__, function.__kwdefaults__, function.__dict__])
        read = () if _is_library(function.__module__) else self._globals(function)
        return types.FunctionType, self.of(function.__code__), tuple(cells), given, read

    def _of_cell(self, cell: types.CellType) -> Hashable:
        try:
            return self.of(cell.cell_contents)
        except ValueError:
            return "empty"

    def _globals(self, function: types.FunctionType) -> tuple:
        names, found = sorted(_names(function.__code__)), []
        for name in names:
            value = function.__globals__.get(name)
            if not isinstance(value, types.ModuleType):
                found.append((name, self.of(value)))
            elif value is np and "random" in names:
                raise _NotKnownError
            elif not _is_library(value.__name__):
                parts = [getattr(value, part) for part in names if part in vars(value)]
                if not parts or any(isinstance(part, types.ModuleType) for part in parts):
                    raise _NotKnownError
                found.append((name, self._each(parts)))
        return tuple(found)

    def _of_class(self, kind: type) -> Hashable:
        if _is_library(kind.__module__):
            return "class", id(kind)
        own = {name: _unwrapped(value) for name, value in vars(kind).items()}
        read = {
            name: value
            for name, value in own.items()
            if not isinstance(value, _OF_CLASSES) and not name.startswith(("_abc_", "__"))
        }
        called = own.get("__call__"), own.get("__init__"), own.get("__post_init__")
        return "class", id(kind), self._each([read, called, *kind.__bases__])

    def _of_object(self, thing: Any) -> Hashable:
        kind, parts = type(thing), getattr(thing, "__dict__", None)
        if hasattr(thing, "__wrapped__") and _is_library(kind.__module__):
            return self.of(kind), self.of(thing.__wrapped__)
        slots = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ())]
        if parts is None and not slots:
            if kind.__module__.split(".")[0] in ("jax", "jaxlib") or kind is np.ufunc:
                return _hashable(thing)
            raise _NotKnownError
        if parts and _is_library(kind.__module__):
            # What a library refers to weakly it can make anew.
            parts = {n: part for n, part in parts.items() if not isinstance(part, weakref.ref)}
        in_slots = [getattr(thing, name, None) for name in slots if not name.startswith("__")]
        return self._each([kind, parts or {}, in_slots])


def _of_numbers(array: np.ndarray) -> Hashable:
    if array.dtype.hasobject:
        raise _NotKnownError
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
    return "numbers", array.dtype.str, array.shape, digest


def _of_builtin(function: types.BuiltinFunctionType) -> Hashable:
    owner = function.__self__
    if isinstance(owner, types.ModuleType | type | None) and _is_library(function.__module__):
        return "builtin", id(function)
    raise _NotKnownError


def _hashable(thing: Any) -> Hashable:
    try:
        hash(thing)
    except TypeError:
        raise _NotKnownError from None
    return type(thing), thing


def _is_library(module: str | None) -> bool:
    if module is None or module.startswith("numpy.random"):
        return False
    return module.split(".")[0] in _LIBRARIES


def _names(code: types.CodeType) -> set[str]:
    """What code names, and the code inside it."""
    inside = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return set(code.co_names).union(*map(_names, inside))


def _unwrapped(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    return (value.fget, value.fset) if isinstance(value, property) else value
