"""Settings from the command line and from TOML files, checked against a typed configuration."""

import difflib
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

from vpng.errors import InputError, expected


class Preset(StrEnum):
    """How large an experiment is."""

    DEFAULT = "default"
    QUICK = "quick"
    PAPER = "paper"


def typed_settings(kind: type, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`settings` with every value in the type that its field of the dataclass `kind` has.

    Args:
        kind: the configuration.
        settings: values as TOML gives them: numbers, strings, booleans, arrays.
        where: the option or file they came from, for messages.

    Raises:
        InputError: for a key that `kind` lacks or a value that does not fit its type.
    """
    hints = typing.get_type_hints(kind)
    known = [field.name for field in fields(kind)]
    typed = {}
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise expected(where, f"settings among {', '.join(known)}", f"{key!r}{hint}")
        typed[key] = _as_type(hints[key], value, f"{where}: {key}")
    return typed


def read_toml(path: Path, experiments: tuple[str, ...], name: str) -> dict[str, Any]:
    """The settings for the experiment `name` in the file at `path`.

    Tables are named after experiments; keys outside of tables belong to the one experiment that was
    asked for. The name `all` has tables alone.

    Raises:
        InputError: if the file cannot be read, or names an experiment that does not exist.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise expected("--config", "a TOML file", f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise expected("--config", "a TOML file", f"{path}: {error}") from error
    settings = {key: value for key, value in document.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in document.items() if isinstance(value, dict)}
    for table in tables:
        if table not in experiments:
            raise expected(str(path), f"tables among {', '.join(experiments)}", f"[{table}]")
    if name != "all":
        return {**settings, **tables.get(name, {})}
    if settings:
        raise expected(
            str(path), "every setting in the table of its experiment", ", ".join(settings)
        )
    return tables


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` with the value in TOML's notation; a bare word is a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise expected("--set", "key=value", repr(text))
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def _as_type(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None or value == "none":
            return None
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _as_type(inner, value, where)
    if origin is tuple:
        return _as_tuple(arguments, value, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        names = [str(member.value) for member in hint]
        if value not in names:
            raise expected(where, f"one of {', '.join(names)}", repr(value))
        return hint(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, str, bool) and type(value) is hint:
        return value
    raise expected(where, _wanted(hint), repr(value))


def _as_tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple:
    if not isinstance(value, list | tuple):
        raise expected(where, "an array such as [1, 2]", repr(value))
    if arguments[-1] is ...:
        if not value:
            raise expected(where, "an array with at least one value", "an empty one")
        return tuple(_as_type(arguments[0], item, where) for item in value)
    if len(value) != len(arguments):
        raise expected(where, f"an array of {len(arguments)} values", f"{len(value)} of them")
    return tuple(_as_type(hint, item, where) for hint, item in zip(arguments, value, strict=True))


def _wanted(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
    if hint not in names:
        raise InputError(f"configuration: a field of type {hint} cannot be set from text.")
    return names[hint]
