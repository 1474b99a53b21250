"""What is fuzzed: strategies for input, and what must hold of whatever comes out.

Bad input may end in a `vpng.InputError`, on the command line in exit code 2 with one line, and in
nothing else. What is accepted must be right: every target compares it with an oracle of its own.
No target may leave a file outside of its own folder.
"""

import hashlib
import io
import os
import struct
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

from vpng import InputError, Parameters, optimizers
from vpng.archive import read_archive, write_archive
from vpng.datasets import read_ratings, read_titles
from vpng.datasets.idx import parse_idx
from vpng.datasets.movielens import EDITIONS, Edition, load_movielens
from vpng.models import BayesianLogisticRegression, PoissonFactorization
from vpng.problems import GaussianMean
from vpng.training import Checkpoints, EverySteps, fit
from vpng.training.checkpoint import Keeper
from vpng.training.history import Record
from vpng.training.identity import Identity


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


# IDX

CODES = {0x08: "B", 0x09: "b", 0x0B: "h", 0x0C: "i", 0x0D: "f", 0x0E: "d"}


@st.composite
def idx_files(draw) -> bytes:
    code = draw(st.sampled_from(sorted(CODES)) | st.integers(0, 255))
    shape = draw(st.lists(st.integers(0, 5) | st.integers(0, 2**32 - 1), max_size=4))
    header = struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)
    size = min(int(np.prod([float(n) for n in shape])), 200) * struct.calcsize(CODES.get(code, "B"))
    body = draw(st.binary(min_size=size, max_size=size))
    return draw(damaged(header + body))


def check_idx(content: bytes, folder: Path) -> None:
    bad, array = refused(lambda: parse_idx("file", content))
    if bad:
        return
    dimensions = content[3]
    shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
    letter = CODES[content[2]]
    numbers = struct.unpack(f">{int(np.prod(shape))}{letter}", content[4 + 4 * dimensions :])
    assert array.shape == shape
    np.testing.assert_array_equal(array.ravel(), np.array(numbers, letter))


# Ratings as CSV and DAT

FIELDS = ("userId", "movieId", "rating", "timestamp")


@st.composite
def rating_files(draw) -> tuple[str, bytes, list[tuple] | None]:
    """The name, the content, and the ratings in it if nothing is wrong with it."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 2**31 - 1), st.integers(0, 9), st.integers(1, 10), st.integers(0, 9)
            ),
            min_size=1,
            max_size=6,
        )
    )
    rows = [(user, item, stars / 2, when) for user, item, stars, when in rows]
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    if draw(st.booleans()):
        name, lines = "ratings.dat", ["::".join(map(str, row)) for row in rows]
    else:
        name = "ratings.csv"
        order = draw(st.permutations(range(4)))
        lines = [",".join(str(line[i]) for i in order) for line in [FIELDS, *rows]]
    content = (newline.join(lines) + newline * draw(st.booleans())).encode()
    if draw(st.booleans()):
        return name, content, rows
    strange = st.sampled_from(
        [
            "nan",
            "inf",
            "-1",
            "1e3",
            "",
            '"',
            '"1"',
            " 1",
            "9" * 30,
            "4.7",
            "\x00",
            "é",
            "0x1",
            "1_0",
        ]
    )
    text = content.decode()
    if draw(st.booleans()):
        part = draw(st.sampled_from(text.replace("::", ",").replace("\n", ",").split(",")))
        content = text.replace(part, draw(strange), 1).encode() if part else content
    return name, draw(damaged(content)), None


def check_ratings(case: tuple, folder: Path) -> None:
    name, content, rows = case
    (folder / name).write_bytes(content)
    bad, ratings = refused(lambda: read_ratings(folder / name))
    if rows is not None:
        assert not bad
        wanted = {(user, item): stars for user, item, stars, _ in rows}
        found = zip(ratings.users.tolist(), ratings.items.tolist(), strict=True)
        assert dict(zip(found, ratings.stars.tolist(), strict=True)) == wanted
    elif not bad:
        assert len(ratings) > 0
        assert (ratings.users >= 0).all()
        assert (ratings.items >= 0).all()
        assert np.isin(ratings.stars, np.arange(1, 11) / 2).all()
        pairs = set(zip(ratings.users.tolist(), ratings.items.tolist(), strict=True))
        assert len(pairs) == len(ratings)


# Zip files of ratings

MEMBER = "small/ratings.csv"
CSV = b"userId,movieId,rating,timestamp\n7,3,4.5,10\n1,2,0.5,11\n7,2,5.0,12\n"
NAMES = (MEMBER, "../escaped", "/tmp/vpng-escaped", "small/../../escaped", "a" * 200, "C:\\x", "")


@st.composite
def zip_files(draw) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as target:
        warnings.simplefilter("ignore")
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=4)):
            info = zipfile.ZipInfo(name or "x")
            if draw(st.booleans()):
                info.external_attr = 0o120777 << 16  # a symbolic link
            content = draw(st.sampled_from([CSV, b"/etc/passwd", b"", CSV * 3]))
            kind = draw(
                st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
            )
            target.writestr(info, content, kind)
    content = bytearray(buffer.getvalue())
    for place in (6, 8):  # flags (encryption), method, of the first entry and the directory's first
        if draw(st.integers(0, 9)) == 0:
            value = draw(st.integers(0, 255))
            for signature, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
                found = content.find(signature)
                if found >= 0:
                    content[found + place + shift] = value
    return draw(damaged(bytes(content)))


def check_zip(content: bytes, folder: Path) -> None:
    checksum = "sha256:" + hashlib.sha256(content).hexdigest()
    (folder / "small.zip").write_bytes(content)
    environment = {"VPNG_DATA_DIR": str(folder)}
    with (
        mock.patch.dict(EDITIONS, {"small": Edition(checksum, MEMBER, 1)}),
        mock.patch.dict(os.environ, environment),
        stays_inside(folder),
    ):
        bad, ratings = refused(lambda: load_movielens("small", progress=False))
    assert os.listdir(folder) == ["small.zip"]
    assert not Path("/tmp/vpng-escaped").exists()
    if not bad:
        assert set(ratings.users.tolist()) <= {7, 1}


# Titles

TITLES = b'movieId,title,genres\n1,Toy,x\n2,"A, B",y\n'


def check_titles(case: tuple[str, bytes], folder: Path) -> None:
    name, content = case
    (folder / name).write_bytes(content)
    bad, titles = refused(lambda: read_titles(folder / name))
    if content == TITLES and name.endswith("csv"):
        assert titles == {1: "Toy", 2: "A, B"}
    elif not bad:
        assert all(isinstance(key, int) and isinstance(text, str) for key, text in titles.items())


# Saved models


@cache
def saved_models() -> dict[str, tuple[dict, dict[str, np.ndarray]]]:
    """Settings and arrays of two small models."""
    import tempfile

    found = {}
    counts = np.random.default_rng(0).poisson(1.0, (12, 5))
    labels = np.arange(12) % 2
    models = {
        "PoissonFactorization": PoissonFactorization(
            n_components=2, hidden=(3,), batch_size=4, max_epochs=1, random_state=0
        ).fit(counts),
        "BayesianLogisticRegression": BayesianLogisticRegression(num_steps=2, random_state=0).fit(
            counts, labels
        ),
    }
    with tempfile.TemporaryDirectory() as scratch:
        for name, model in models.items():
            found[name] = read_archive(model.save(Path(scratch) / "model"), name)
    return found


KINDS = {
    "PoissonFactorization": PoissonFactorization,
    "BayesianLogisticRegression": BayesianLogisticRegression,
}
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 10**9)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=4,
)
ARRAYS = st.sampled_from(
    [
        np.zeros(0),
        np.zeros((2, 3)),
        np.full((1,), np.nan),
        np.array(["text"]),
        np.array(3),
        np.zeros((5, 2), np.complex64),
        np.arange(4),
        np.zeros((1, 1, 1, 1)),
    ]
)


@st.composite
def model_files(draw) -> tuple[str, dict, dict, bytes | None]:
    """A kind, settings and arrays to be written, or the bytes of a damaged file."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    settings, arrays = map(dict, saved_models()[kind])
    if draw(st.integers(0, 2)) == 0:
        return kind, settings, arrays, draw(damaged(_packed(kind, settings, arrays)))
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(settings)) | st.text(max_size=3))
        if draw(st.booleans()):
            settings.pop(key, None)
        else:
            settings[key] = draw(JSON)
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from(sorted(arrays)) | st.text("ab[]'", max_size=3))
        if draw(st.booleans()):
            arrays.pop(key, None)
        else:
            arrays[key] = draw(ARRAYS)
    return kind, settings, arrays, None


def _packed(kind: str, settings: dict, arrays: dict) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        return write_archive(Path(scratch) / "model", kind, settings, arrays).read_bytes()


def check_model(case: tuple, folder: Path) -> None:
    kind, settings, arrays, content = case
    path = folder / "model"
    if content is None:
        try:
            write_archive(path, kind, settings, arrays)
        except ValueError:  # what JSON or a file's name in a zip cannot say
            return
    else:
        path.write_bytes(content)
    rows = np.random.default_rng(1).poisson(1.0, (3, 5))
    with stays_inside(folder):
        bad, model = refused(lambda: KINDS[kind].load(path))
    assert os.listdir(folder) == ["model"]
    whole_settings, whole_arrays = saved_models()[kind]
    whole = content is None and settings == whole_settings and arrays.keys() == whole_arrays.keys()
    whole = whole and all(np.array_equal(arrays[key], whole_arrays[key]) for key in arrays)
    assert not (whole and bad)
    if whole:
        predicted = model.transform(rows) if kind.startswith("Poisson") else model.predict(rows)
        assert np.isfinite(predicted).all()


# Checkpoints

STATE = {"weights": jnp.arange(3.0), "key": jax.random.key(3), "count": jnp.int32(4)}


def _identity() -> Identity:
    leaves = {
        jax.tree_util.keystr(p): str(leaf.dtype)
        for p, leaf in jax.tree_util.tree_leaves_with_path(STATE)
    }
    return Identity({"program": "p"}, leaves, {"vpng": "1"})


@st.composite
def checkpoint_folders(draw) -> list[tuple[str, int, bytes]]:
    """Damage to be done: which file (by its place in the list), where, and with what."""
    files = st.integers(0, 3)
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from(["set", "cut", "add", "drop"]),
                files,
                st.integers(0, 2000),
                st.binary(min_size=1, max_size=8),
            ),
            max_size=3,
        )
    )


def check_checkpoint(case: list[tuple[str, int, int, bytes]], folder: Path) -> None:
    place = folder / "kept"
    settings = Checkpoints(place, keep=2, every=EverySteps(1))
    keeper = Keeper(settings, _identity(), STATE, resume=False)
    for step in (1, 2):
        state = {**STATE, "weights": STATE["weights"] + step}
        record = Record(step, 0.1 * step, 1.0, 0.1, 0, {"m": 2.0})
        keeper.note([record], np.array([1.0 * step]))
        keeper.write(step, state, 0.1 * step)
    for kind, which, where, content in case:
        paths = sorted(path for path in place.iterdir() if path.is_file())
        if not paths:
            break
        path = paths[which % len(paths)]
        data = bytearray(path.read_bytes())
        where = min(where, len(data))
        if kind == "drop":
            path.unlink()
            continue
        if kind == "set":
            data[where : where + len(content)] = content
        elif kind == "add":
            data[where:where] = content
        else:
            del data[where:]
        path.write_bytes(bytes(data))
    with stays_inside(folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad, keeper = refused(lambda: Keeper(settings, _identity(), STATE, resume=True))
    if bad or keeper.found is None:
        assert case, "a whole checkpoint was refused"
        return
    found = keeper.found
    step = round(float(found.state["weights"][0]))
    assert step in (1, 2)
    np.testing.assert_array_equal(found.state["weights"], STATE["weights"] + step)
    assert len(found.history.records) in (0, step)


# The command line

WORDS = st.sampled_from(
    ["toy", "psd", "logistic", "vae", "vae-no-ema", "vmf", "all", "nothing", "", "--", "-1", "x=1"]
)
SETTINGS = st.sampled_from(
    [
        "seeds=1",
        "seeds=0",
        "seeds=-3",
        "seeds=1.5",
        "seeds=",
        "=1",
        "seeds",
        "iterations=10",
        "learning_rates=[0.1]",
        "learning_rates=[]",
        "learning_rates=[nan]",
        "learning_rates=[-1.0]",
        "methods=['vpng']",
        "methods=['other']",
        "methods=[]",
        "damping=1e999",
        "budget=inf",
        "data='mnist'",
        "x = [1",
        "seeds=[[1]]",
        "seeds={a=1}",
        "batch_size=99999999999999999999",
        "seeds=true",
        "seeds=2024-01-01",
        "epsilon=nan",
        "\u00e9=1",
        "seeds=1\n",
        "record_every=0",
    ]
)
OPTIONS = st.one_of(
    st.tuples(st.just("--seeds"), st.integers(-2, 3).map(str) | st.sampled_from(["x", "", "1e3"])),
    st.tuples(st.just("--iterations"), st.integers(-2, 10**12).map(str)),
    st.tuples(st.just("--budget"), st.sampled_from(["0", "-1", "1", "nan", "inf", "1e400", "x"])),
    st.tuples(st.just("--methods"), st.sampled_from(["vpng", "vpng,vpng", ",", "gradient,x", ""])),
    st.tuples(st.just("--data"), st.sampled_from(["digits", "mnist", "../x", "", "ml-1m"])),
    st.tuples(st.just("--preset"), st.sampled_from(["quick", "paper", "default", "", "slow"])),
    st.tuples(st.just("--set"), SETTINGS),
    st.tuples(st.just("--config"), st.sampled_from(["config.toml", "missing.toml", ".", ""])),
    st.just(("--resume",)),
    st.sampled_from([("--mesh",), ("--distributed",)]),
    st.tuples(st.just("--coordinator"), st.sampled_from(["a:1", "a", "[::1]:9", "", "a:b", ":1"])),
    st.tuples(st.just("--num-processes"), st.integers(-1, 3).map(str) | st.just("x")),
    st.tuples(st.just("--process-id"), st.integers(-1, 3).map(str) | st.just("1.5")),
    st.tuples(st.just("--out"), st.sampled_from(["out", "file", "file/under", ""])),
    st.tuples(st.text(max_size=3)),
)
TOML = st.sampled_from(
    [
        "",
        "seeds = 1",
        "[toy]\nseeds = 1",
        "[other]\nx = 1",
        "seeds = [",
        "a.b.c = 1",
        "\x00",
        "[vae]\nbudget = 'x'",
        "seeds = 1979-05-27",
        "[toy]\n[toy]",
        "learning_rates = [[1]]",
    ]
)
TARGETS_OF_RACE = st.sampled_from(
    [
        "",
        ":",
        "a:",
        ":b",
        "nothing:x",
        "math:pi",
        "math:nothing",
        "..:x",
        ".:x",
        "json:decoder",
        "a b:c",
        "math.sin:x",
        "\u00e9:x",
        "math:inf.x",
    ]
)
FILES = st.sampled_from(["model", "ratings.csv", "missing", ".", "file", "", "movies.csv"])


@st.composite
def command_lines(draw) -> tuple[list[str], str]:
    command = draw(
        st.sampled_from(
            [
                "reproduce",
                "reproduce",
                "reproduce",
                "report",
                "compare",
                "race",
                "recommend",
                "other",
            ]
        )
    )
    options = [part for group in draw(st.lists(OPTIONS, max_size=4)) for part in group]
    if command == "reproduce":
        arguments = [draw(WORDS), *draw(st.sampled_from([["--out", "out"]] * 4 + [[]])), *options]
    elif command in ("report", "compare"):
        arguments = draw(st.lists(FILES | st.sampled_from(["results"]), max_size=3))
    elif command == "race":
        arguments = [draw(TARGETS_OF_RACE), "--out", "out", *options]
    elif command == "recommend":
        arguments = ["--model", draw(FILES), "--ratings", draw(FILES)]
        arguments += ["--user", draw(st.sampled_from(["7", "-1", "x", "99"]))]
        arguments += draw(
            st.sampled_from([[], ["--movies", "movies.csv"], ["-n", "0"], ["-n", "2"]])
        )
    else:
        arguments = draw(st.lists(WORDS, max_size=2))
    return [command, *arguments], draw(TOML)


@contextmanager
def _standing_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def check_command_line(case: tuple[list[str], str], folder: Path) -> None:
    from vpng.cli.app import main

    arguments, toml = case
    inside = folder / "inside"
    inside.mkdir()
    (inside / "file").write_text("a file")
    (inside / "ratings.csv").write_bytes(CSV)
    (inside / "movies.csv").write_bytes(TITLES)
    (inside / "config.toml").write_text(toml)
    (inside / "model").write_bytes(b"PK no model")
    ran: list[tuple] = []
    code, out, err = 0, io.StringIO(), io.StringIO()
    with (
        stays_inside(inside),
        _standing_in(inside),
        mock.patch("vpng.cli.reproduce.run_and_store", lambda *a, **k: ran.append(a)),
        mock.patch("vpng.cli.reproduce.write_report", lambda out: out),
        mock.patch("jax.distributed.initialize", return_value=None),
        mock.patch.object(sys, "argv", ["vpng", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    assert code in (0, 1, 2), code
    assert "Traceback" not in err.getvalue()
    if code == 2:
        assert err.getvalue().strip(), "refused without a word"
        assert not ran
    made = {
        "file",
        "ratings.csv",
        "movies.csv",
        "config.toml",
        "model",
        "out",
        "report.html",
        "results",
    }
    assert set(os.listdir(inside)) <= made


# Problems of odd shapes

ODD = st.sampled_from(
    [
        np.zeros((0, 2), np.float32),
        np.zeros((1, 2), np.float32),
        np.ones((5, 2), np.float32),
        np.ones((5, 2), np.float64),
        np.ones((5, 2), np.int32),
        np.ones((5, 2), bool),
        np.ones((5, 2), np.complex64),
        np.full((5, 2), np.nan, np.float32),
        np.ones(5, np.float32),
        np.float32(1.0),
        np.ones((5, 3), np.float32),
        np.ones((5, 2), object),
        np.array([["a", "b"]]),
        [],
        {},
        None,
        (),
        [[1.0, 2.0], [3.0]],
        {"x": np.ones((5, 2)), "y": np.ones((4, 2))},
        np.full((5, 2), np.inf, np.float32),
        "text",
        3,
        np.full((5, 2), 1e30, np.float32),
    ]
)
START = st.sampled_from(
    [
        Parameters(jnp.zeros(2)),
        Parameters(jnp.zeros(3)),
        Parameters(jnp.zeros((), jnp.int32)),
        Parameters(()),
        jnp.zeros(2),
        None,
        Parameters(jnp.full(2, jnp.nan)),
        Parameters([0.0, 0.0]),
        Parameters(np.zeros(2)),
        Parameters(None),
        Parameters("text"),
        Parameters(jnp.zeros(2), jnp.zeros(1)),
    ]
)
RUNS = st.fixed_dictionaries(
    {},
    optional={
        "batch_size": st.sampled_from([None, 1, 2, 5, 6, 0, -1, 1.5, True, "3"]),
        "record_every": st.sampled_from([1, 3, 0, -2, 2.5]),
        "max_seconds": st.sampled_from([0.0, -1.0, 1e-9, float("nan"), 1e9]),
    },
)


def check_fit(case: tuple, folder: Path) -> None:
    data, params, options, num_steps, number = case
    problem = GaussianMean.create(jnp.eye(2), number)
    optimizer = optimizers.gradient(0.1, rule=optax.scale_by_adam())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad, result = refused(
            lambda: fit(
                problem,
                params,
                data,
                optimizer,
                num_steps,
                jax.random.key(0),
                progress=False,
                **options,
            )
        )
    if not bad:
        assert isinstance(params, Parameters)
        begun = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
        now = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
        assert now or not begun
        assert 1 <= int(result.state.step) <= num_steps


TARGETS = {
    "idx": Target(idx_files(), check_idx, 3.0),
    "ratings": Target(rating_files(), check_ratings, 4.0),
    "zip": Target(zip_files(), check_zip, 3.0),
    "titles": Target(
        st.tuples(
            st.sampled_from(["movies.csv", "movies.dat"]),
            damaged(TITLES) | damaged(b"1::Toy::x\n2::B::y\n") | st.binary(max_size=40),
        ),
        check_titles,
        1.5,
    ),
    "model": Target(model_files(), check_model, 2.0),
    "checkpoint": Target(checkpoint_folders(), check_checkpoint, 2.0),
    "command line": Target(command_lines(), check_command_line, 4.0),
    "fit": Target(
        st.tuples(
            ODD, START, RUNS, st.sampled_from([1, 2, 0, -1, 2.0]), st.sampled_from([5, 1, 4])
        ),
        check_fit,
        0.5,
    ),
}
