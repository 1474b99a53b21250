"""Ratings of items by users: tables of (user, item, stars), read from text files.

Two layouts are known: `ratings.csv` with the head userId,movieId,rating[,timestamp], and the older
`ratings.dat` without a head, its fields apart by "::". Rules for what is not quite right:

- a row with too few fields, a field that is no number, an id that is negative, or stars off the
  half-star scale: an error that names the line;
- the same user and item twice: the later line counts, as a user who rates again would expect.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from vpng.errors import InputError, expected
from vpng.problems import Ratings

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("userId", "movieId", "rating")
MOST_STARS = 5.0
_OLDER_HEAD = b"userId\tmovieId\trating\ttimestamp\n"


def read_ratings(path: Path | str) -> Ratings:
    """The ratings of a `.csv` or `.dat` file.

    Raises:
        InputError: for a file that cannot be read, or the first line that is wrong, by its number.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from error
    return parse_ratings(content, str(path))


def parse_ratings(content: bytes, label: str) -> Ratings:
    """The ratings in the bytes of a file whose name, for the layout and in errors, is `label`.

    Raises:
        InputError: for the first line that is wrong, by its number.
    """
    separator, first_line = ",", 2
    if label.endswith(".dat"):
        if b"\t" in content[:4096]:
            raise expected(label, 'fields apart by "::"', "a tab")
        content = _OLDER_HEAD + content.replace(b"::", b"\t")
        separator, first_line = "\t", 1
    table = _table(content, label, separator, first_line)
    stars = table["rating"].to_numpy()
    _check_scale(stars, label, first_line)
    for name in COLUMNS[:2]:
        if (negative := table[name].to_numpy() < 0).any():
            row = int(negative.argmax())
            wanted = f"a {name} of at least 0 in line {row + first_line}"
            raise expected(label, wanted, table[name][row])
    if not len(table):
        raise expected(label, "at least one rating", "none")
    if _repeated(*(table[name].to_numpy() for name in COLUMNS[:2])):
        table = table.unique(COLUMNS[:2], keep="last", maintain_order=True)
    return Ratings(*(table[name].to_numpy() for name in COLUMNS))


def _repeated(users: Int[np.ndarray, " r"], items: Int[np.ndarray, " r"]) -> bool:
    """Whether a pair comes twice; a file sorted by user and item, as MovieLens's are, is quick."""
    pairs = users.astype(np.int64) << 31
    pairs |= items
    if (pairs[1:] > pairs[:-1]).all():
        return False
    pairs.sort()
    return bool((pairs[1:] == pairs[:-1]).any())


def _table(content: bytes, label: str, separator: str, first_line: int) -> "pl.DataFrame":
    import polars as pl

    head = content.split(b"\n", 1)[0].decode("utf-8-sig", "replace").strip().split(separator)
    if missing := [name for name in COLUMNS if name not in head]:
        wanted = f"the head {','.join(COLUMNS)}"
        raise expected(label, wanted, f"{','.join(head)[:80]!r}, without {missing[0]}")
    types: dict[str, Any] = dict(zip(COLUMNS, (pl.Int32, pl.Int32, pl.Float32), strict=True))
    try:
        table = pl.read_csv(content, separator=separator, columns=COLUMNS, schema_overrides=types)
    except (pl.exceptions.PolarsError, ValueError):
        table = None
    if table is None or any(column.null_count() for column in table.iter_columns()):
        raise _first_bad_line(content, label, head, separator, first_line)
    return table.select(COLUMNS)


def _first_bad_line(
    content: bytes, label: str, head: list[str], separator: str, first_line: int
) -> InputError:
    """The error for the first line that is no rating; a slow look, for files known to be bad."""
    places = [head.index(name) for name in COLUMNS]
    lines = content.decode("utf-8-sig", "replace").splitlines()
    for number, line in enumerate(lines[1:], start=first_line):
        fields = line.split(separator)
        where, written = f"{label}, line {number}", repr(line.replace("\t", "::")[:80])
        if len(fields) != len(head):
            return expected(where, f"{len(head)} fields", written)
        try:
            user, item, _ = (
                kind(fields[place]) for kind, place in zip((int, int, float), places, strict=True)
            )
        except ValueError:
            return expected(where, "userId, movieId and rating as numbers", written)
        if max(abs(user), abs(item)) >= 2**31:
            return expected(where, "ids below 2^31", written)
    return expected(label, "a table of ratings", "one that cannot be read")


def _check_scale(stars: Float[np.ndarray, " r"], label: str, first_line: int) -> None:
    on_scale = (2 * stars == np.round(2 * stars)) & (stars >= 0.5) & (stars <= MOST_STARS)
    if not on_scale.all():
        row = int((~on_scale).argmax())
        wanted = "half stars from 0.5 to 5.0"
        raise expected(f"{label}, line {row + first_line}", wanted, f"{stars[row]:g}")
