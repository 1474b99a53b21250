"""The logistic experiment: the paper's data, and VPNG ahead where the paper says it is."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import Parameters
from vpng.errors import InputError
from vpng.experiments.logistic import LogisticConfig, make_data, mean_prediction, run
from vpng.experiments.methods import Method
from vpng.problems import MeanField

SMALL = LogisticConfig(
    seeds=2,
    iterations=600,
    learning_rates=(0.3, 1.0),
    dampings=(1e-2,),
    methods=(Method.GRADIENT, Method.VPNG),
)


@pytest.fixture(scope="module")
def results():
    return run(SMALL)


def test_vpng_is_ahead_of_the_gradient(results):
    auc = {name: entry["test_auc"]["mean"] for name, entry in results.summary.items()}
    assert auc["vpng"] > 0.95
    assert auc["vpng"] > auc["gradient"] + 0.1


def test_the_same_seeds_give_the_same_bits(results):
    again = run(replace(SMALL, methods=(Method.VPNG,)))
    before = [r.params_sha256 for r in results.runs if r.method == Method.VPNG.value]
    assert [r.params_sha256 for r in again.runs] == before
    assert len({r.params_sha256 for r in results.runs}) == len(results.runs)


def test_the_last_record_may_be_shorter():
    short = replace(SMALL, iterations=25, record_every=10, seeds=1, methods=(Method.GRADIENT,))
    [only] = run(short).runs
    assert list(only.curves["iteration"]) == [10, 20, 25]


def test_the_best_grid_point_is_chosen_on_the_training_score(results):
    for name, grid in results.extra["grid"].items():
        best = max(point["train_auc"]["mean"] for point in grid)
        assert results.summary[name]["train_auc"]["mean"] == pytest.approx(best)


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
