"""The VAE experiment on the bundled digits: protocol, summary and figures."""

import json

import numpy as np
import pytest

from vpng.errors import InputError
from vpng.paper.datasets import load_digits
from vpng.paper.experiments.registry import EXPERIMENTS
from vpng.paper.experiments.results import Run
from vpng.paper.experiments.session import Session
from vpng.paper.experiments.vae import VaeConfig, race, without_averages
from vpng.plot.methods import Method

TINY = VaeConfig(
    batch_size=100,
    num_particles=2,
    budget=None,
    iterations=70,
    record_every=35,
    num_train_images=200,
    evaluation_particles=1,
    learning_rates=(0.003, 0.01),
    pilot=1.0,
    rules=("adam",),
    methods=(Method.GRADIENT, Method.VPNG),
)


@pytest.fixture(scope="module")
def results():
    return EXPERIMENTS["vae"].run(TINY, Session())


@pytest.mark.endurance
def test_every_method_has_a_summary_and_curves(results):
    assert set(results.summary) == {"gradient", "vpng"}
    elbos = {"test_elbo", "train_elbo", "best_test_elbo", "best_train_elbo"}
    keys = elbos | {"iterations", "seconds_per_iteration"}
    for entry in results.summary.values():
        assert keys | {"best_learning_rate", "optimizer"} == set(entry)
        assert entry["iterations"] == 70
    for run in results.runs:
        assert run.curves["iteration"] == [35, 70]
        assert np.isfinite(run.curves["test_elbo"]).all()


@pytest.mark.endurance
def test_the_step_size_is_chosen_on_the_training_elbo(results):
    for name, points in results.extra["grid"].items():
        best = max(points, key=lambda point: point["train_elbo"])
        assert results.summary[name]["best_learning_rate"] == best["learning_rate"]


@pytest.mark.endurance
def test_seventy_steps_of_vpng_beat_seventy_of_the_gradient(results):
    elbo = {name: entry["train_elbo"] for name, entry in results.summary.items()}
    assert elbo["vpng"] > elbo["gradient"]


@pytest.mark.endurance
def test_files_are_written(results, tmp_path):
    paths = EXPERIMENTS["vae"].draw(results, tmp_path)
    assert {path.name for path in paths} == {
        f"vae_{what}.{kind}" for what in ("curves", "pictures") for kind in ("png", "svg")
    }
    heads, rows = EXPERIMENTS["vae"].table(results)
    assert all(len(row) == len(heads) for row in rows)
    json.loads(results.to_json())


def test_the_race_is_read_off_the_curves():
    def run(method, seconds, elbo):
        return Run(method, 0, 0.1, "", {"seconds": seconds, "test_elbo": elbo})

    outcome = race(
        [
            run("gradient", [1.0, 2.0, 4.0], [-30.0, -20.0, -10.0]),
            run("vpng", [1.0, 2.0, 4.0], [-15.0, -9.0, -4.0]),
            run("hessian_free", [1.0, 4.0], [-90.0, -80.0]),
        ]
    )["methods"]
    reached = 1.0 + 5.0 / 6.0  # from -15 to -10, on the way to -9
    assert outcome["vpng"]["seconds_to_gradient_final"] == pytest.approx(reached)
    assert outcome["vpng"]["share_of_gradient_time"] == pytest.approx(reached / 4.0)
    assert outcome["vpng"]["lead_in_nats"] == 6.0
    assert outcome["hessian_free"]["seconds_to_gradient_final"] is None


def test_the_ablation_has_no_averages():
    assert without_averages().decay is None
    assert VaeConfig().decay == 0.9


@pytest.mark.parametrize(
    ("field", "value"),
    [("data", "faces"), ("budget", 0.0), ("pilot", 2.0), ("batch_size", 0), ("damping", -1.0)],
)
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=field):
        VaeConfig(**{field: value})


def test_the_embedded_data_need_no_files():
    images = load_digits()
    assert images.train.shape == (1500, 64)
    assert set(np.unique(images.train)) == {0.0, 1.0}
