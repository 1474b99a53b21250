"""Two folders side by side: what changed, and whether it is more than noise."""

import pytest
from made_up_results import document, run, two_methods, write

from vpng.errors import InputError
from vpng.paper.experiments.results import Headline
from vpng.paper.report.compare import Change, compare, compare_documents


def changes(comparison):
    return {(line.method, line.metric): line.change for line in comparison.lines}


def test_better_worse_and_the_same():
    a = document(two_methods(8.0, 4.0))
    b = document(two_methods(9.0, 4.0))
    for entry in b["runs"]:
        if entry["method"] == "vpng":
            entry["params_sha256"] = "1" * 64
    found = changes(compare_documents(a, b))
    assert found["vpng", "test_elbo"] is Change.BETTER
    assert found["vpng", "loss"] is Change.BETTER
    assert found["gradient", "test_elbo"] is Change.SAME
    assert changes(compare_documents(b, a))["vpng", "test_elbo"] is Change.WORSE


def test_a_slower_step_is_worse():
    a, b = document(two_methods(8.0, 4.0)), document(two_methods(8.0, 4.0, pace=2.0))
    b["runs"][0]["params_sha256"] = "1" * 64
    lines = {(line.method, line.metric): line for line in compare_documents(a, b).lines}
    line = lines["vpng", "seconds_per_iteration"]
    assert (line.before, line.after) == ([1.0] * 3, [2.0] * 3)
    assert line.change is Change.WORSE


def test_scatter_is_not_a_change():
    a, b = (document(two_methods(8.0 + shift, 4.0, jitter=1.0)) for shift in (0.0, 0.1))
    assert changes(compare_documents(a, b))["vpng", "test_elbo"] is Change.NOISE


def test_one_seed_says_nothing():
    a, b = (document(two_methods(ours, 4.0, seeds=1)) for ours in (8.0, 9.0))
    assert changes(compare_documents(a, b))["vpng", "test_elbo"] is Change.UNKNOWN


def test_with_a_goal_the_steps_are_compared():
    headline = Headline("test_elbo", "test ELBO", goal=-60.0)
    a, b = (
        document([run("vpng", s, 8.0, steps=n) for s in range(2)], headline=headline)
        for n in (10, 5)
    )
    assert changes(compare_documents(a, b)) == {("vpng", "iterations"): Change.BETTER}


def test_differences_are_listed():
    a, b = document(two_methods()), document(two_methods()[:3])
    b["configuration"]["seeds"] = 5
    b["environment"]["packages"]["jax"] = "99"
    notes = " ".join(compare_documents(a, b).notes())
    assert "Setting seeds: 2 in A, 5 in B." in notes
    assert "in A, 99 in B." in notes
    assert "Gradient is in A alone." in notes
    assert compare_documents(a, a).notes() == ["The settings and the packages are the same."]


def test_folders_and_the_command_line(vpng, tmp_path):
    a = write(tmp_path / "a" / "vae", document(two_methods(), experiment="vae")).parent
    b = write(tmp_path / "b", document(two_methods(9.0), experiment="vae"))
    write(tmp_path / "a" / "toy", document(two_methods(), experiment="toy"))
    assert [found.experiment for found in compare(a, b)] == ["vae"]
    out = tmp_path / "compared.md"
    code, text, _ = vpng("compare", str(a), str(b), "--out", str(out))
    assert code == 0
    assert "The settings and the packages are the same." in text
    assert "| VPNG | test ELBO | -20 ± 0.5 | -10 ± 0.5 | +10 |" in out.read_text()
    other = write(tmp_path / "c", document(two_methods(), experiment="psd"))
    with pytest.raises(InputError, match=r"an experiment of .*vae, got psd"):
        compare(b, other)
