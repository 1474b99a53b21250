"""What objects keep of a trace, and the values that take its place once the program has run.

An object that first meets its data while a program is traced may keep what it saw for later. The
program then returns those arrays too, and they are put where the traced ones were.
"""

import copy
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import jax
import numpy as np

from vpng.numerics.trees import Tracer, is_traced

_LEAVES = (
    *(str, bytes, bool, int, float, complex, type(None), type, types.ModuleType),
    *(np.ndarray, np.generic, jax.Array),
)


def kept_tracers(thing: Any) -> list[Tracer]:
    """Every traced array that is reached from `thing`, once."""
    found: dict[int, Tracer] = {}

    def note(tracer: Tracer) -> Tracer:
        return found.setdefault(id(tracer), tracer)

    _Rebuilt(note)(thing)
    return list(found.values())


def with_values(
    thing: Any, tracers: Iterable[Tracer], values: Iterable[jax.Array], whole: list
) -> Any:
    """`thing` with values for its traced arrays; parts that have none stay the same objects.

    Args:
        thing: dictionaries, lists, tuples, functions and objects in any order.
        tracers: the traced arrays.
        values: one for each.
        whole: objects that are left as they are.
    """
    known = {id(tracer): value for tracer, value in zip(tracers, values, strict=True)}
    return _Rebuilt(lambda tracer: known.get(id(tracer), tracer), whole)(thing)


class _Rebuilt:
    """A walk that makes anew what holds a changed array, and only that."""

    def __init__(self, change: Callable[[Tracer], Any], whole: Iterable = ()) -> None:
        self._change = change
        # What was met, kept alive so that no other object gets its id, and what became of it.
        self._met: dict[int, tuple[Any, Any]] = {id(each): (each, each) for each in whole}

    def __call__(self, thing: Any) -> Any:
        if is_traced(thing):
            return self._change(thing)
        if isinstance(thing, _LEAVES):
            return thing
        if id(thing) not in self._met:
            # Where it holds itself it is met again before it is done.
            self._met[id(thing)] = (thing, thing)
            self._met[id(thing)] = (thing, self._anew(thing))
        return self._met[id(thing)][1]

    def _anew(self, thing: Any) -> Any:
        if isinstance(thing, dict):
            return self._changed(thing, dict(thing), _dictionary_with)
        if isinstance(thing, list | tuple):
            return self._changed(thing, dict(enumerate(thing)), _sequence_with)
        if isinstance(thing, partial):
            parts = {"func": thing.func, "args": thing.args, "keywords": thing.keywords}
            return self._changed(thing, parts, _partial_with)
        if isinstance(thing, types.MethodType):
            parts = {"function": thing.__func__, "of": thing.__self__}
            return self._changed(thing, parts, _method_with)
        if isinstance(thing, types.FunctionType):
            parts = {"cells": _contents(thing), "defaults": thing.__defaults__}
            return self._changed(thing, parts, _function_with)
        parts = getattr(thing, "__dict__", None)
        return self._changed(thing, parts, _object_with) if isinstance(parts, dict) else thing

    def _changed(
        self, thing: Any, parts: dict[Any, Any], make: Callable[[Any, dict[Any, Any]], Any]
    ) -> Any:
        new = {name: self(part) for name, part in parts.items()}
        return make(thing, new) if any(new[name] is not parts[name] for name in parts) else thing


def _dictionary_with(thing: dict, parts: dict[Any, Any]) -> dict:
    new = copy.copy(thing)
    new.update(parts)
    return new


def _sequence_with(thing: Any, parts: dict[Any, Any]) -> Any:
    make = getattr(type(thing), "_make", type(thing))
    return make(parts.values())


def _partial_with(thing: partial, parts: dict[Any, Any]) -> partial:
    return type(thing)(parts["func"], *parts["args"], **parts["keywords"])


def _method_with(thing: types.MethodType, parts: dict[Any, Any]) -> types.MethodType:
    return types.MethodType(parts["function"], parts["of"])


_EMPTY = object()


def _contents(function: types.FunctionType) -> tuple:
    """The values that a function captures."""
    contents = []
    for cell in function.__closure__ or ():
        try:
            contents.append(cell.cell_contents)
        except ValueError:
            contents.append(_EMPTY)
    return tuple(contents)


def _function_with(thing: types.FunctionType, parts: dict[Any, Any]) -> types.FunctionType:
    cells = tuple(
        types.CellType() if value is _EMPTY else types.CellType(value) for value in parts["cells"]
    )
    named = (thing.__code__, thing.__globals__, thing.__name__, parts["defaults"])
    new = types.FunctionType(*named, cells or None)
    new.__kwdefaults__ = thing.__kwdefaults__
    new.__dict__.update(thing.__dict__)
    return new


def _object_with(thing: Any, parts: dict[Any, Any]) -> Any:
    new = object.__new__(type(thing))
    new.__dict__.update(parts)
    return new
