"""Words on the command line, and files that they name."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from fuzz_readers import CSV, TITLES
from fuzz_target import Target, stays_inside
from hypothesis import strategies as st

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
    from vpng.paper.cli.app import main

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
        mock.patch("vpng.paper.cli.reproduce.run_and_store", lambda *a, **k: ran.append(a)),
        mock.patch("vpng.paper.cli.reproduce.write_report", lambda out: out),
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


TARGETS = {
    "command line": Target(command_lines(), check_command_line, 4.0),
}
