"""`vpng reproduce` with files, presets and resumption, as a user meets it."""

import pytest

from vpng.errors import InputError
from vpng.paper.experiments import psd
from vpng.paper.experiments.registry import EXPERIMENTS
from vpng.paper.experiments.schema import load_results

SMALL = ("--seeds", "2", "--set", "num_thetas=3", "--set", "num_draws=20")


def without_time(folder):
    document = load_results(folder)
    return {key: value for key, value in document.items() if key != "environment"}


def test_a_killed_grid_goes_on_and_ends_the_same(vpng, tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert vpng("reproduce", "psd", "--out", str(whole), *SMALL)[0] == 0
    genuine, calls = psd.params_sha256, []

    def second_dies(matrices):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return genuine(matrices)

    monkeypatch.setattr(psd, "params_sha256", second_dies)
    assert vpng("reproduce", "psd", "--out", str(cut), *SMALL)[0] not in (0, 2)
    assert not (cut / "results.json").exists()
    code, _, err = vpng("reproduce", "psd", "--out", str(cut), *SMALL)
    assert code == 2
    assert "--resume" in err
    code, _, err = vpng("reproduce", "psd", "--out", str(cut), "--resume", *SMALL, "--seeds", "3")
    assert code == 2
    assert "seeds 2 (now 3)" in err
    code, _, err = vpng("reproduce", "psd", "--out", str(cut), "--resume", *SMALL)
    assert code == 0
    assert "run 2 of 2" in err
    assert len(calls) == 3, "the finished run was run again"
    assert without_time(cut) == without_time(whole)


def test_file_then_options(vpng, tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("[psd]\nnum_thetas = 3\nnum_draws = 30\nscale = 2\nseeds = 3\n")
    out = tmp_path / "out"
    code, _, _ = vpng(
        *("reproduce", "psd", "--out", str(out), "--config", str(file)),
        *("--preset", "quick", "--seeds", "1", "--set", "num_draws=20"),
    )
    assert code == 0
    assert load_results(out)["configuration"] == {
        "num_thetas": 3,
        "num_draws": 20,
        "variational": 0.5,
        "scale": 2.0,
        "seeds": 1,
    }
    assert (out / "curves.csv").read_text().startswith("experiment,method,seed,")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["toy", "--preset", "huge"], ["--preset", "default, quick, paper", "huge"]),
        (["toy", "--set", "epsilo=0.1"], ["--set", "did you mean epsilon?"]),
        (["toy", "--set", "epsilon=2"], ["epsilon", "between 0 and 1"]),
        (["toy", "--set", 'methods=["vpng_block"]'], ["methods", "vpng_block"]),
        (["toy", "--config", "nowhere.toml"], ["--config", "nowhere.toml"]),
        (["all", "--seeds", "2"], ["all", "--preset", "--seeds"]),
        (["all", "--set", "seeds=2"], ["all", "--set"]),
    ],
)
def test_bad_settings_leave_no_files(vpng, tmp_path, arguments, words):
    out = tmp_path / "out"
    code, _, err = vpng("reproduce", *arguments, "--out", str(out))
    assert code == 2
    for word in words:
        assert word in err
    assert not out.exists()


def test_all_runs_everything_and_writes_the_report(vpng, tmp_path, monkeypatch):
    monkeypatch.setattr("vpng.paper.cli.reproduce.EXPERIMENTS", {"psd": EXPERIMENTS["psd"]})
    file = tmp_path / "settings.toml"
    file.write_text("[psd]\nnum_thetas = 3\nnum_draws = 20\n")
    out = tmp_path / "out"
    everything = ("reproduce", "all", "--out", str(out), "--config", str(file))
    assert vpng(*everything)[0] == 0
    assert load_results(out / "psd")["configuration"]["num_draws"] == 20
    assert "Positive semidefiniteness" in (out / "report.html").read_text()
    (out / "psd" / "results.json").unlink()
    code, _, err = vpng(*everything)
    assert code == 2
    assert "--resume" in err
    assert vpng(*everything, "--resume")[0] == 0
    assert (out / "psd" / "results.json").exists()


def test_missing_data_are_found_before_the_first_run(vpng, tmp_path, monkeypatch):
    def absent(name):
        raise InputError(f"data: expected the files of {name}, got none")

    two = {name: EXPERIMENTS[name] for name in ("psd", "vmf")}
    monkeypatch.setattr("vpng.paper.cli.reproduce.EXPERIMENTS", two)
    monkeypatch.setattr("vpng.paper.experiments.vmf.load_movielens", absent)
    out = tmp_path / "out"
    code, _, err = vpng("reproduce", "all", "--preset", "paper", "--out", str(out))
    assert code == 2
    assert "expected the files of ml-20m" in err
    assert not out.exists()
