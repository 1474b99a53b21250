"""The logistic experiment: the paper's data, and VPNG ahead where the paper says it is."""

import contextlib
import io
import json
import xml.etree.ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import Parameters
from vpng.errors import InputError
from vpng.paper.cli.app import main
from vpng.paper.experiments import sweep
from vpng.paper.experiments.logistic import LogisticConfig, make_data, mean_prediction, run
from vpng.plot.methods import Method
from vpng.problems import MeanField

SMALL = LogisticConfig(
    seeds=2,
    iterations=600,
    learning_rates=(0.3, 1.0),
    dampings=(1e-2,),
    methods=(Method.GRADIENT, Method.VPNG),
)


class Finished(NamedTuple):
    """What the command printed and wrote."""

    out: str
    folder: Path
    results: dict[str, Any]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The settings `SMALL`, from the command line."""
    folder, out = tmp_path_factory.mktemp("logistic"), io.StringIO()
    options = ["--seeds", "2", "--iterations", "600", "--methods", "gradient,vpng"]
    grid = ["--set", "learning_rates=[0.3, 1.0]", "--set", "dampings=[0.01]"]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(
            "sys.argv", ["vpng", "reproduce", "logistic", "--out", str(folder), *options, *grid]
        )
        with contextlib.suppress(SystemExit):
            main()
    return Finished(out.getvalue(), folder, json.loads((folder / "results.json").read_text()))


def test_table_and_curve_are_written(finished):
    out, folder, results = finished
    assert set(results["summary"]) == set(results["grid"]) == {"gradient", "vpng"}
    for entry in results["summary"].values():
        assert set(entry["train_auc"]) == set(entry["test_auc"]) == {"mean", "std"}
    assert (folder / "logistic_test_auc.png").read_bytes().startswith(b"\x89PNG")
    xml.etree.ElementTree.parse(folder / "logistic_test_auc.svg")
    assert "0.734" in (folder / "table.md").read_text()
    assert "±" in out


def test_vpng_is_ahead_of_the_gradient(finished):
    summary = finished.results["summary"]
    auc = {name: entry["test_auc"]["mean"] for name, entry in summary.items()}
    assert auc["vpng"] > 0.95
    assert auc["vpng"] > auc["gradient"] + 0.1


def test_the_same_seeds_give_the_same_bits(finished):
    runs = finished.results["runs"]
    again = run(replace(SMALL, methods=(Method.VPNG,)))
    before = [run["params_sha256"] for run in runs if run["method"] == Method.VPNG.value]
    assert [run.params_sha256 for run in again.runs] == before
    assert len({run["params_sha256"] for run in runs}) == len(runs)


@pytest.mark.parametrize("processors", [1, 3])
def test_lanes_in_several_parts_keep_their_order_and_their_results(monkeypatch, processors):
    short = replace(SMALL, iterations=20, record_every=10, methods=(Method.GRADIENT,))
    whole = run(short)
    monkeypatch.setattr(sweep, "LANES_AT_A_TIME", 3)
    monkeypatch.setattr(sweep, "num_processors", lambda: processors)
    parts = run(short)
    for before, after in zip(whole.runs, parts.runs, strict=True):
        assert (before.seed, before.settings) == (after.seed, after.settings)
        # Programs of other widths may round differently; twenty steps do not magnify that.
        np.testing.assert_allclose(before.curves["loss"], after.curves["loss"], rtol=1e-4)
    for before, after in zip(*(r.extra["grid"]["gradient"] for r in (whole, parts)), strict=True):
        assert before["learning_rate"] == after["learning_rate"]
        assert before["train_auc"]["mean"] == pytest.approx(after["train_auc"]["mean"], abs=1e-3)


def test_the_last_record_may_be_shorter():
    short = replace(SMALL, iterations=25, record_every=10, seeds=1, methods=(Method.GRADIENT,))
    [only] = run(short).runs
    assert list(only.curves["iteration"]) == [10, 20, 25]


def test_the_best_grid_point_is_chosen_on_the_training_score(finished):
    for name, grid in finished.results["grid"].items():
        best = max(point["train_auc"]["mean"] for point in grid)
        assert finished.results["summary"][name]["train_auc"]["mean"] == pytest.approx(best)


def test_the_data_are_the_papers():
    problem, split = make_data(LogisticConfig())
    assert split.train.covariates.shape == (400, 5)
    assert split.test.covariates.shape == (100, 5)
    assert problem.prior_scale == 100.0
    everything = np.concatenate([split.train.covariates, split.test.covariates])
    labels = np.concatenate([split.train.labels, split.test.labels])
    np.testing.assert_array_equal(everything[:, 4], 1.0)
    ratios = everything[:, :1] / np.arange(1, 5) - everything[:, :4]
    assert np.abs(ratios).max() <= 0.01 + 1e-6, "columns are a, a/2, a/3, a/4 up to the jitter"
    assert np.abs(everything[:, 0]).max() > 4.5
    margin = everything[:, :4] @ np.array([1.0, -2.0, -3.0, 4.0])
    np.testing.assert_array_equal(labels, margin >= 0)


def test_the_mean_prediction_is_the_expectation_under_q():
    _, split = make_data(LogisticConfig())
    q = MeanField(jnp.array([1.0, -1.0, 0.5, 0.0, 0.3]), jnp.log(jnp.full(5, 0.4)))
    weights = q.loc + jnp.exp(q.log_scale) * jax.random.normal(jax.random.key(0), (20_000, 5))
    sampled = jax.nn.sigmoid(weights @ split.test.covariates.T).mean(axis=0)
    # A mean of 20,000 numbers in [0, 1] has a standard error below 0.0036: five of them.
    np.testing.assert_allclose(mean_prediction(Parameters(q), split.test), sampled, atol=0.018)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_train", 500),
        ("num_particles", 0),
        ("learning_rates", (0.0,)),
        ("learning_rates", (float("nan"),)),
        ("dampings", (-1.0,)),
        ("budget", float("inf")),
        ("prior_scale", float("nan")),
        ("initial_scale", -1.0),
        ("data_seed", -1),
    ],
)
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(InputError, match=field):
        LogisticConfig(**{field: value})
