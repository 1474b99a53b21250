"""What a target of fuzzing is, and what must hold of all of them."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from vpng import InputError


@dataclass(frozen=True)
class Target:
    """One part of the library under fuzzing.

    Attributes:
        cases: the strategy.
        check: case, folder -> nothing, or an exception if something is wrong.
        weight: how many cases of a soak are its own, relative to the others.
    """

    cases: st.SearchStrategy
    check: Callable[[Any, Path], None]
    weight: float = 1.0


@contextmanager
def stays_inside(folder: Path) -> Iterator[None]:
    """Nothing appears beside `folder`, nor in the current folder, and links are not followed."""
    places = [folder.parent, Path.cwd()]
    before = [set(os.listdir(place)) for place in places]
    yield
    for place, names in zip(places, before, strict=True):
        new = set(os.listdir(place)) - names
        assert not new, f"left in {place}: {sorted(new)}"


def refused(function: Callable[[], Any]) -> tuple[bool, Any]:
    """Whether `function` refuses its input, and what it returns if not."""
    try:
        return False, function()
    except InputError as error:
        text = str(error)
    assert text.strip(), "an error without a word"
    assert len(text) < 5000, "an error that quotes its whole input"
    return True, None


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """`content` with bytes changed, cut off, put in or repeated."""
    data = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "repeat"]))
        if kind == "flip" and place < len(data):
            data[place] ^= draw(st.integers(1, 255))
        elif kind == "cut":
            del data[place : place + draw(st.integers(0, 64))]
        elif kind == "insert":
            data[place:place] = draw(st.binary(max_size=16))
        elif kind == "repeat":
            data[place:place] = data[: draw(st.integers(0, 64))]
    return bytes(data)
