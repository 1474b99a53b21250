"""MovieLens: the two layouts, where files come from, and what is refused on the way."""

import hashlib
import io
import zipfile

import numpy as np
import pytest

from vpng.errors import InputError
from vpng.paper.datasets import load_movielens, movielens, read_ratings, read_titles
from vpng.paper.datasets.movielens import EDITIONS, Edition

CSV = "userId,movieId,rating,timestamp\n7,3,4.5,10\n1,2,0.5,11\n7,2,5.0,12\n"
DAT = "7::3::4.5::10\n1::2::0.5::11\n7::2::5::12\n"


def packed(text, member):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr(member, text)
    return buffer.getvalue()


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """(data folder, cache folder), the first named by VPNG_DATA_DIR."""
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    (cache / "movielens").mkdir(parents=True)
    monkeypatch.setenv("VPNG_DATA_DIR", str(data))
    return data, cache


@pytest.fixture
def edition(monkeypatch):
    """An edition of one small zip file."""
    content = packed(CSV, "small/ratings.csv")
    checksum = "md5:" + hashlib.md5(content).hexdigest()
    monkeypatch.setitem(EDITIONS, "small", Edition(checksum, "small/ratings.csv", 1))
    return content


def assert_the_three(ratings):
    assert ratings.users.tolist() == [7, 1, 7]
    assert ratings.items.tolist() == [3, 2, 2]
    assert ratings.stars.tolist() == [4.5, 0.5, 5.0]


@pytest.mark.parametrize(("name", "text"), [("ratings.csv", CSV), ("ratings.dat", DAT)])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_both_layouts(tmp_path, name, text, newline):
    path = tmp_path / name
    path.write_bytes(text.replace("\n", newline).encode())
    assert_the_three(read_ratings(path))


def test_columns_may_come_in_another_order(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("rating,movieId,userId\n4.5,3,7\n0.5,2,1\n5.0,2,7\n")
    assert_the_three(read_ratings(path))


def test_the_later_of_two_ratings_counts(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("userId,movieId,rating\n1,2,3.0\n1,3,1.0\n1,2,4.0\n")
    ratings = read_ratings(path)
    assert ratings.items.tolist() == [3, 2]
    assert ratings.stars.tolist() == [1.0, 4.0]


BAD = {
    "half a line": ("1,2,3.0\n1,3\n", "line 3: expected 3 fields, got '1,3'"),
    "a word": ("1,2,3.0\n1,2,3.5\none,3,4.0\n", "line 4: expected userId"),
    "no rating": ("1,2,\n", "line 2: expected userId"),
    "too many stars": (
        "1,2,5.0\n1,3,5.5\n",
        "line 3: expected half stars from 0.5",
    ),
    "no stars": ("1,2,0\n", "line 2: expected half stars"),
    "quarter stars": ("1,2,3.25\n", "line 2: expected half stars"),
    "not a number": ("1,2,nan\n", "line 2: expected half stars"),
    "negative id": ("1,-2,3.0\n", "movieId of at least 0 in line 2"),
    "huge id": ("1,99999999999,3.0\n", "line 2: expected ids below"),
    "nothing": ("", "at least one rating"),
}


@pytest.mark.parametrize(("rows", "message"), BAD.values(), ids=BAD)
def test_bad_rows_are_refused_by_their_line(tmp_path, rows, message):
    path = tmp_path / "ratings.csv"
    path.write_text("userId,movieId,rating\n" + rows)
    with pytest.raises(InputError, match=message) as caught:
        read_ratings(path)
    assert str(path) in str(caught.value)


def test_bad_rows_of_the_older_layout(tmp_path):
    path = tmp_path / "ratings.dat"
    path.write_text("1::2::3::0\n1::2:4::0\n")
    with pytest.raises(InputError, match="line 2: expected 4 fields, got '1::2:4::0'"):
        read_ratings(path)


def test_a_foreign_table_is_refused(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text("name,score\nann,3\n")
    with pytest.raises(InputError, match="without userId"):
        read_ratings(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_ratings(tmp_path / "missing.csv")


def test_an_unpacked_folder_comes_first(folders, edition):
    data, cache = folders
    (data / "small").mkdir()
    (data / "small" / "ratings.csv").write_text(CSV)
    (data / "small.zip").write_bytes(b"never read")
    assert_the_three(load_movielens("small", cache=cache))


@pytest.mark.parametrize("place", ["data", "data/movielens", "cache/movielens"])
def test_zip_files_are_found(tmp_path, folders, edition, place):
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "small.zip").write_bytes(edition)
    assert_the_three(load_movielens("small", cache=folders[1], mirrors=()))


def test_a_download_is_kept_and_a_failed_one_is_not(folders, edition, monkeypatch):
    _, cache = folders
    sent = {"http://good": edition, "http://bad": edition[:-20]}

    class Downloader:
        def __init__(self, **options):
            pass

        def __call__(self, url, output, pooch):
            with open(output, "wb") as file:
                file.write(sent[url.rsplit("/", 1)[0]])

    monkeypatch.setattr("pooch.HTTPDownloader", Downloader)
    with pytest.raises(InputError, match="no complete zip file"):
        load_movielens("small", cache=cache, mirrors=["http://bad"])
    assert list((cache / "movielens").iterdir()) == []
    assert_the_three(load_movielens("small", cache=cache, mirrors=["http://bad", "http://good"]))
    assert_the_three(load_movielens("small", cache=cache, mirrors=()))


def test_truncated_and_foreign_zip_files_are_refused(folders, edition, monkeypatch):
    path = folders[0] / "small.zip"
    path.write_bytes(edition[:-30])
    with pytest.raises(InputError, match=r"no complete zip file.*unset VPNG_DATA_DIR"):
        load_movielens("small", cache=folders[1])
    path.write_bytes(packed(CSV, "other.csv"))
    with pytest.raises(InputError, match="expected a file with MD5"):
        load_movielens("small", cache=folders[1])
    known = "md5:" + hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setitem(EDITIONS, "small", Edition(known, "small/ratings.csv", 1))
    with pytest.raises(InputError, match=r"a zip file that has small/ratings\.csv"):
        load_movielens("small", cache=folders[1])


def test_unknown_editions_are_refused():
    with pytest.raises(InputError, match="ml-latest-small, ml-1m, ml-10m, ml-20m, ml-25m"):
        load_movielens("ml-2m")


def test_every_edition_says_how_it_is_verified():
    lengths = {"md5": 32, "sha256": 64}
    for edition in movielens.EDITIONS.values():
        kind, digest = edition.checksum.split(":")
        assert len(digest) == lengths[kind]
        assert int(digest, 16)


def test_titles(tmp_path):
    path = tmp_path / "movies.csv"
    path.write_text('movieId,title,genres\n1,"President, The (1995)",Drama\n5,Heat,Crime\n')
    assert read_titles(path) == {1: "President, The (1995)", 5: "Heat"}
    path.write_text("movieId,title,genres\nx,Heat,Crime\n")
    with pytest.raises(InputError, match="line 2"):
        read_titles(path)
    older = tmp_path / "movies.dat"
    older.write_text("1::Toy Story (1995)::Animation\n")
    assert read_titles(older) == {1: "Toy Story (1995)"}


def test_the_readers_give_plain_arrays(tmp_path):
    path = tmp_path / "ratings.csv"
    path.write_text(CSV)
    assert all(isinstance(column, np.ndarray) for column in read_ratings(path))
