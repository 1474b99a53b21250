"""The matrix factorisation experiment on a small matrix: splits, summary, early stopping."""

import json

import numpy as np
import pytest

from vpng.errors import InputError
from vpng.paper.datasets import Shape, rating_matrix, synthetic_ratings
from vpng.paper.experiments import vmf
from vpng.paper.experiments.contest import Contest, GridPoint, Trained
from vpng.paper.experiments.registry import EXPERIMENTS
from vpng.paper.experiments.vmf import DataSet, VmfConfig, best_by_validation, load_counts
from vpng.plot.methods import Method

TINY = VmfConfig(
    latent_dim=3,
    batch_size=40,
    budget=None,
    iterations=60,
    record_every=30,
    evaluation_particles=1,
    learning_rates=(0.003, 0.01),
    pilot=1.0,
    rules=("adam",),
    methods=(Method.GRADIENT, Method.VPNG_EIGENBASIS),
)


@pytest.fixture(scope="module")
def results():
    counts = rating_matrix(synthetic_ratings(Shape(300, 20, 900))).counts
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vmf, "load_counts", lambda data, least: counts)
        return EXPERIMENTS["vmf"].run(TINY, None)


def test_every_method_has_a_summary_and_curves(results):
    assert set(results.summary) == {"gradient", "vpng_eigenbasis"}
    for entry in results.summary.values():
        assert {"test_elbo", "train_elbo", "test_elbo_best", "seconds_to_best"} <= set(entry)
        assert entry["iterations"] == 60
        assert entry["test_elbo_best"] >= entry["test_elbo"] - 1.0
    for run in results.runs:
        assert run.curves["iteration"] == [30, 60]
        for part in ("train", "validation", "test"):
            assert np.isfinite(run.curves[f"{part}_elbo"]).all()
    assert results.extra["matrix"]["movies"] == 20
    assert results.extra["race"]["methods"]["gradient"]["lead_in_nats"] == 0.0


def test_sixty_steps_of_vpng_beat_sixty_of_the_gradient(results):
    elbo = {name: entry["train_elbo"] for name, entry in results.summary.items()}
    assert elbo["vpng_eigenbasis"] > elbo["gradient"]


def test_files_are_written(results, tmp_path):
    paths = EXPERIMENTS["vmf"].draw(results, tmp_path)
    assert {path.name for path in paths} == {"vmf_curves.png", "vmf_curves.svg"}
    heads, rows = EXPERIMENTS["vmf"].table(results)
    assert all(len(row) == len(heads) for row in rows)
    assert heads[2] == "Test ELBO, stopped early"
    json.loads(results.to_json())


def test_early_stopping_reads_the_validation_curve_alone():
    curves = {
        "validation_elbo": [-5.0, -3.0, float("nan"), -4.0],
        "test_elbo": [-9.0, -8.0, -1.0, -2.0],
        "seconds": [1.0, 2.0, 3.0, 4.0],
        "iteration": [10.0, 20.0, 30.0, 40.0],
    }
    point = GridPoint(0.1, "adam")
    outcome = Contest([], {}, {"vpng": point}, {"vpng": [Trained(curves, "", "")]}, {})
    assert best_by_validation(outcome)["vpng"] == {
        "test_elbo_best": -8.0,
        "seconds_to_best": 2.0,
        "iterations_to_best": 20.0,
    }


def test_a_run_that_was_never_finite_has_no_best_moment():
    nothing = [float("nan")] * 2
    times = {"seconds": [1.0, 2.0], "iteration": [10.0, 20.0]}
    curves = {"validation_elbo": nothing, "test_elbo": nothing, **times}
    outcome = Contest(
        [], {}, {"vpng": GridPoint(1.0, "adam")}, {"vpng": [Trained(curves, "", "")]}, {}
    )
    found = best_by_validation(outcome)["vpng"]
    assert np.isnan(found["test_elbo_best"])
    assert found["seconds_to_best"] == 1.0


def test_the_default_data_need_no_files():
    counts = load_counts(DataSet.SYNTHETIC)
    assert counts.shape == (20_000, 500)
    assert 0.07 < np.mean(counts > 0) < 0.09
    assert counts.max() == 9


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data", "ml-2m"),
        ("budget", 0.0),
        ("pilot", 2.0),
        ("dropout", 1.0),
        ("kl_weight", -1.0),
        ("min_ratings", 0),
        ("latent_dim", 0),
        ("learning_rates", (-1.0,)),
    ],
)
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=field):
        VmfConfig(**{field: value})
