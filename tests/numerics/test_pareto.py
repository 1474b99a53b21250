"""Smoothed importance weights: SciPy's distribution and NumPyro's k-hat are the oracles."""

import math

import numpy as np
import pytest
from numpyro.infer.importance import _psis_khat
from scipy.stats import genpareto

from vpng.numerics.pareto import pareto_fit, reliable_below, smoothed


@pytest.mark.parametrize("shape", [-0.2, 0.3, 0.9])
def test_shape_and_scale_of_a_pareto_sample(shape):
    sample = np.sort(genpareto(shape, scale=2.0).rvs(20_000, random_state=0))
    found, scale = pareto_fit(sample)
    # Four standard errors of the maximum likelihood estimate, (1 + shape) / sqrt(n).
    assert found == pytest.approx(shape, abs=4 * (1 + shape) / math.sqrt(20_000) + 1e-3)
    assert scale == pytest.approx(2.0, rel=0.06)


@pytest.mark.parametrize("spread", [0.5, 1.0, 3.0])
def test_k_hat_is_that_of_numpyro(spread):
    log_weights = spread * np.random.default_rng(0).normal(size=4000)
    assert smoothed(log_weights).k_hat == pytest.approx(_psis_khat(log_weights), abs=1e-8)


def test_smoothing_keeps_the_order_and_the_bulk_and_cuts_the_largest():
    log_weights = 2.0 * np.random.default_rng(1).normal(size=4000)
    after = smoothed(log_weights).log_weights
    assert after.max() <= log_weights.max()
    order = np.argsort(log_weights)
    assert np.all(np.diff(after[order]) >= -1e-12)
    np.testing.assert_array_equal(after[order[:3000]], log_weights[order[:3000]])


def test_smoothed_weights_estimate_as_well_on_average():
    rng = np.random.default_rng(2)
    means = [np.exp(smoothed(rng.normal(size=1000)).log_weights).mean() for _ in range(200)]
    # The mean of exp(N(0, 1)) is exp(1/2), with a standard error of 0.005 over all draws.
    assert np.mean(means) == pytest.approx(math.exp(0.5), abs=0.02)


def test_equal_weights_have_no_tail():
    assert math.isnan(smoothed(np.zeros(100)).k_hat)
    assert math.isnan(smoothed(np.full(100, -np.inf)).k_hat)


def test_draws_without_density_count_for_nothing():
    log_weights = np.random.default_rng(3).normal(size=1000)
    log_weights[:10] = np.nan
    after = smoothed(log_weights)
    assert np.all(after.log_weights[:10] == -np.inf)
    assert np.isfinite(after.k_hat)


def test_more_draws_bear_heavier_tails():
    assert reliable_below(100) == pytest.approx(0.5)
    assert reliable_below(10_000) == 0.7
