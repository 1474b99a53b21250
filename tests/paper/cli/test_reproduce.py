"""The command line as a user meets it, in this process: files, tables, exit codes and messages."""

import json
import xml.etree.ElementTree
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from vpng.errors import InputError, expected
from vpng.paper.experiments.registry import EXPERIMENTS
from vpng.paper.experiments.toy import ToyConfig


def load(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


def assert_figures(folder: Path, name: str) -> None:
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    xml.etree.ElementTree.parse(folder / f"{name}.svg")


def test_toy_points_at_the_optimum(vpng, tmp_path):
    code, out, _ = vpng(
        *("reproduce", "toy", "--out", str(tmp_path / "new" / "toy")),
        *("--seeds", "2", "--iterations", "1500"),
    )
    folder = tmp_path / "new" / "toy"
    results = load(folder)
    assert code == 0
    assert "VPNG" in out
    assert_figures(folder, "toy")
    summary = results["summary"]
    assert summary["vpng"]["angle_to_optimum_degrees"] < 5
    assert summary["vpng"]["steps_to_1e-3"] < 10
    for method in ("gradient", "natural_gradient"):
        assert summary[method]["angle_to_optimum_degrees"] > 45
        assert summary[method]["steps_to_1e-3"] > 20 * summary["vpng"]["steps_to_1e-3"]
    assert {run["seed"] for run in results["runs"]} == {0, 1}
    for run in results["runs"]:
        assert len(run["params_sha256"]) == 64
        assert len({len(curve) for curve in run["curves"].values()}) == 1
    assert results["schema"] == "vpng.results/1"
    assert results["environment"]["packages"]["jax"]
    assert not list(folder.glob(".*")), "temporary files were left behind"


def test_psd_shows_the_negative_eigenvalue(vpng, tmp_path):
    code, _, _ = vpng("reproduce", "psd", "--out", str(tmp_path))
    results = load(tmp_path)
    assert code == 0
    assert_figures(tmp_path, "psd")
    curves = results["runs"][0]["curves"]
    for theta, closed, sampled, fisher in zip(
        curves["theta"],
        curves["closed_form"],
        curves["substituted_hessian"],
        curves["predictive_fisher"],
        strict=True,
    ):
        if abs(theta) < results["boundary"] - 1e-3:
            assert closed < 0
        if abs(theta) > results["boundary"] + 1e-3:
            assert closed > 0
        # Entries of the Monte Carlo matrix have a standard deviation below
        # 6 max(theta)^4 / sqrt(20,000) < 0.05: five of them bound the eigenvalue's error.
        assert abs(sampled - closed) < 0.25
        assert fisher >= -1e-6


def test_logistic_stops_at_the_budget(vpng, tmp_path):
    code, _, _ = vpng(
        *("reproduce", "logistic", "--budget", "0.01", "--seeds", "1"),
        *("--methods", "gradient", "--out", str(tmp_path)),
    )
    assert code == 0
    assert load(tmp_path)["summary"]["gradient"]["iterations"] == 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reproduce", "nonsense", "--out", "OUT"], ["NAME", "toy, psd, logistic", "nonsense"]),
        (["reproduce", "toy", "--out", "FILE"], ["--out", "folder"]),
        (["reproduce", "toy", "--out", "OUT", "--methods", "sgd"], ["--methods", "sgd"]),
        (["reproduce", "toy", "--out", "OUT", "--methods", ","], ["--methods"]),
        (["reproduce", "psd", "--out", "OUT", "--methods", "vpng"], ["--methods", "psd"]),
        (["reproduce", "psd", "--out", "OUT", "--iterations", "3"], ["--iterations", "psd"]),
        (["reproduce", "toy", "--out", "OUT", "--budget", "3"], ["--budget", "toy"]),
        (["reproduce", "toy", "--out", "OUT", "--seeds", "0"], ["seeds", "at least 1", "0"]),
        (["reproduce", "toy", "--out", "OUT", "--iterations", "-4"], ["iterations", "-4"]),
        (["reproduce", "logistic", "--out", "OUT", "--budget", "nan"], ["budget", "nan"]),
        (["reproduce", "logistic", "--out", "OUT", "--budget", "-1"], ["budget", "-1"]),
        (
            ["reproduce", "logistic", "--out", "OUT", "--budget", "1", "--iterations", "5"],
            ["--budget", "both"],
        ),
        (["reproduce", "toy", "--out", "OUT", "--set", "learning_rates=[nan]"], ["learning_rates"]),
        (["reproduce", "toy", "--out", "OUT", "--set", "num_data=0"], ["num_data", "0"]),
        (["reproduce", "toy", "--out", "OUT", "--set", "epsilon=1e-9"], ["epsilon", "float32"]),
        (["reproduce", "toy", "--out", "OUT", "--set", "tolerance=nan"], ["tolerance", "nan"]),
        (["reproduce", "psd", "--out", "OUT", "--set", "scale=-1.0"], ["scale", "-1"]),
        (["reproduce", "psd", "--out", "OUT", "--set", "variational=nan"], ["variational"]),
        (["reproduce", "toy", "--out", "OUT", "--seeds", "many"], ["--seeds", "integer"]),
        (["reproduce", "toy"], ["--out"]),
        (["reproduce", "psd", "--out", "LONG"], ["--out", "too long"]),
        (["demo", "--out", "FILE"], ["--out", "folder"]),
        (["demo", "--out", "LONG"], ["--out", "too long"]),
        (["nonsense"], ["nonsense"]),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(vpng, tmp_path, arguments, words):
    file = tmp_path / "file"
    file.write_text("mine")
    long = tmp_path / ("x" * 300)
    places = {"OUT": str(tmp_path / "out"), "FILE": str(file), "LONG": str(long)}
    code, out, err = vpng(*(places.get(word, word) for word in arguments))
    assert code == 2
    for word in words:
        assert word in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == [file], "a refused command left files"
    assert file.read_text() == "mine"


PSD = ("reproduce", "psd", "--set", "num_draws=10", "--set", "num_thetas=3")


def refuse(*_):
    raise expected("epsilon", "something else", 0.0)


def test_a_run_that_is_refused_late_leaves_the_folder_free(vpng, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(EXPERIMENTS, "psd", replace(EXPERIMENTS["psd"], run=refuse))
        assert vpng(*PSD, "--out", str(tmp_path))[0] == 2
    assert not list(tmp_path.iterdir()), "a refused command left files"
    assert vpng(*PSD, "--out", str(tmp_path))[0] == 0


def test_runs_that_were_kept_outlast_a_refusal(vpng, tmp_path, monkeypatch):
    def run_then_refuse(configuration, session):
        session.run("first", "first", lambda _: {"kept": True})
        refuse()

    monkeypatch.setitem(EXPERIMENTS, "psd", replace(EXPERIMENTS["psd"], run=run_then_refuse))
    assert vpng(*PSD, "--out", str(tmp_path))[0] == 2
    kept = {path.name for path in (tmp_path / "runs").iterdir()}
    assert kept == {"first.json", "grid.json"}


def test_epsilon_is_judged_in_the_precision_of_the_run(x64):
    assert ToyConfig(epsilon=1e-9).epsilon == 1e-9
    with pytest.raises(InputError, match=r"epsilon.*float64"):
        ToyConfig(epsilon=1e-17)


@pytest.mark.parametrize("name", ["runs/mine.json", "runs", "results.json"])
def test_files_of_others_are_never_removed(vpng, tmp_path, name):
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text('{"precious": true}')
    code, _, err = vpng("reproduce", "psd", "--out", str(tmp_path), "--set", "num_draws=10")
    assert code == 2
    assert "--out" in err
    assert mine.read_text() == '{"precious": true}'


def test_a_folder_in_the_place_of_a_figure_is_one_sentence(vpng, tmp_path):
    (tmp_path / "psd.png").mkdir()
    code, out, err = vpng(
        *("reproduce", "psd", "--out", str(tmp_path)),
        *("--set", "num_draws=10", "--set", "num_thetas=3"),
    )
    assert code == 2
    assert "psd.png" in err
    assert "Traceback" not in out + err


def test_a_folder_that_cannot_be_made_is_refused(vpng, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = vpng("reproduce", "toy", "--out", str(tmp_path / "file" / "below"))
    assert code == 2
    assert "--out" in err


def test_the_version_is_that_of_the_package(vpng):
    assert vpng("--version") == (0, f"vpng {version('vpng')}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["reproduce", "--help"], ["demo", "--help"]])
def test_help_reads_well(vpng, arguments):
    code, out, _ = vpng(*arguments)
    assert code == 0
    assert "Usage" in out
