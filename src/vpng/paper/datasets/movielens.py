"""MovieLens, the ratings of Section 5.3, in the editions that GroupLens publishes as zip files."""

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vpng.errors import InputError, expected
from vpng.packed import DAMAGED, read_member
from vpng.paper.datasets.fetch import DATA_DIR_VARIABLE, cache_folder, data_folder, download
from vpng.paper.datasets.ratings import parse_ratings, read_ratings
from vpng.problems import Ratings

MOVIELENS_MIRRORS = ("https://files.grouplens.org/datasets/movielens",)
"""Where `load_movielens` looks by default, in turn."""


class Edition(NamedTuple):
    """One published zip file.

    Attributes:
        checksum: of the whole file, "md5:..." as GroupLens publishes it or "sha256:...".
        member: the ratings inside the zip.
        min_ratings: ratings that a movie needs to be kept, the paper's for 20M, less for less data.
    """

    checksum: str
    member: str
    min_ratings: int


EDITIONS = {
    "ml-latest-small": Edition(
        "sha256:696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
        "ml-latest-small/ratings.csv",
        20,
    ),
    "ml-1m": Edition("md5:c4d9eecfca2ab87c1945afe126590906", "ml-1m/ratings.dat", 250),
    "ml-10m": Edition("md5:ce571fd55effeba0271552578f2648bd", "ml-10M100K/ratings.dat", 2500),
    "ml-20m": Edition("md5:cd245b17a1ae2cc31bb14903e1204af3", "ml-20m/ratings.csv", 5000),
    "ml-25m": Edition("md5:6b51fb2759a8657d3bfcbfc42b592ada", "ml-25m/ratings.csv", 5000),
}
"""The editions by name."""


def load_movielens(
    name: str,
    *,
    mirrors: Sequence[str] = MOVIELENS_MIRRORS,
    cache: Path | None = None,
    progress: bool = True,
) -> Ratings:
    """The ratings of one edition.

    In the folder that VPNG_DATA_DIR names, `<name>/ratings.csv`, `<name>/ratings.dat` and
    `<name>.zip` are looked for in turn, the last also in its subfolder `movielens`; then
    `movielens/<name>.zip` in the user's cache; else that zip is downloaded into the cache. A zip
    must have the checksum that is known for it; a folder that was unpacked by hand is taken as it
    is.

    Args:
        name: of the edition, see `EDITIONS`.
        mirrors: base addresses of the zip files, tried in turn.
        cache: the cache folder; None for the user's own.
        progress: whether downloads show a progress bar.

    Raises:
        InputError: for an unknown name, files that are corrupt or nowhere to be found, or a row
            that is no rating, by its line.
    """
    edition = _edition(name)
    if (local := data_folder()) is not None:
        for file in ("ratings.csv", "ratings.dat"):
            if (path := local / name / file).is_file():
                return read_ratings(path)
        for path in (local / f"{name}.zip", local / "movielens" / f"{name}.zip"):
            if path.is_file():
                remedy = f"Replace the file, or unset {DATA_DIR_VARIABLE} to have it downloaded."
                return _unpacked(path, edition, label=str(path), remedy=remedy)
    path = cache_folder(cache) / "movielens" / f"{name}.zip"
    if path.is_file():
        remedy = "Delete the file to have it downloaded again."
        return _unpacked(path, edition, label=str(path), remedy=remedy)

    def accept(partial: Path, address: str) -> Ratings:
        return _unpacked(partial, edition, label=address, remedy="")

    return download(path, mirrors, accept, progress=progress)


def _edition(name: str) -> Edition:
    if name not in EDITIONS:
        raise expected("name", f"one of {', '.join(EDITIONS)}", repr(name))
    return EDITIONS[name]


def _unpacked(path: Path, edition: Edition, *, label: str, remedy: str) -> Ratings:
    """The ratings inside a zip file with the edition's checksum."""

    def refuse(wanted: str, got: str) -> InputError:
        return InputError(f"{expected(label, wanted, got)} {remedy}".rstrip())

    kind, known = edition.checksum.split(":")
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != known:
            size = path.stat().st_size
            whole = "" if zipfile.is_zipfile(path) else ", which is no complete zip file"
            wanted = f"a file with {kind.upper()} {known}"
            raise refuse(wanted, f"{found} for {size} bytes{whole}")
        with zipfile.ZipFile(path) as packed:
            content = read_member(packed, edition.member)
    except DAMAGED as error:
        raise refuse(f"a zip file that has {edition.member}", str(error)) from error
    except OSError as error:
        raise InputError(f"{label}: cannot be read: {error.strerror or error}.") from error
    return parse_ratings(content, f"{label}/{edition.member}")


def read_titles(path: Path | str) -> dict[int, str]:
    """The titles in MovieLens's `movies.csv` or `movies.dat`, by movie id.

    Raises:
        InputError: for a file that cannot be read, or a line without id and title, by its number.
    """
    import csv

    path = Path(path)
    titles: dict[int, str] = {}
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from error
    if path.suffix == ".dat":
        rows = enumerate((line.split("::") for line in text.splitlines()), start=1)
    else:
        rows = enumerate(csv.reader(text.splitlines()), start=1)
        _, head = next(rows, (0, []))
        if head[:2] != ["movieId", "title"]:
            raise expected(str(path), "the head movieId,title", repr(",".join(head)))
    for number, row in rows:
        if len(row) < 2 or not row[0].strip().isdigit():
            raise expected(f"{path}, line {number}", "a movie's id and title", repr(row))
        titles[int(row[0])] = row[1]
    return titles
