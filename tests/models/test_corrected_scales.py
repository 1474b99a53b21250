"""The estimator's uncertainty against the posterior itself, integrated on a grid."""

import numpy as np
import pytest
from scipy.special import expit, log_expit

from vpng.models import BayesianLogisticRegression

rng = np.random.default_rng(0)
COMMON = rng.normal(size=(30, 1))
ROWS = (COMMON + 0.3 * rng.normal(size=(30, 2))).astype(np.float32)
LABELS = (rng.uniform(size=30) < expit(ROWS.sum(axis=1))).astype(int)


@pytest.fixture(scope="module")
def fitted():
    model = BayesianLogisticRegression(fit_intercept=False, num_steps=100, random_state=0)
    return model.fit(ROWS, LABELS)


@pytest.fixture(scope="module")
def grid():
    """Weights and their posterior probabilities."""
    axis = np.linspace(-5, 5, 301)
    weights = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    signs = 2.0 * LABELS - 1.0
    heights = log_expit(signs * (weights @ ROWS.T)).sum(axis=1) - 0.5 * (weights**2).sum(axis=1)
    shares = np.exp(heights - heights.max())
    return weights, shares / shares.sum()


def test_the_covariance_is_that_of_the_posterior(fitted, grid):
    weights, shares = grid
    mean = shares @ weights
    covariance = (shares * (weights - mean).T) @ (weights - mean)
    sd = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(fitted.coef_[0], mean, atol=0.1 * sd.min())
    np.testing.assert_allclose(fitted.coef_scale_, sd, rtol=0.1)
    correlation = covariance[0, 1] / sd.prod()
    found = fitted.coef_covariance_[0, 1] / fitted.coef_scale_.prod()
    assert correlation < -0.3
    assert found == pytest.approx(correlation, abs=0.1)


def test_probabilities_are_averages_over_the_posterior(fitted, grid):
    weights, shares = grid
    rows = np.array([[2.0, 2.0], [2.0, -2.0], [0.5, 0.0]], np.float32)
    exact = shares @ expit(weights @ rows.T)
    np.testing.assert_allclose(fitted.predict_proba(rows)[:, 1], exact, atol=0.01)


def test_a_file_keeps_the_covariance(fitted, tmp_path):
    fitted.save(tmp_path / "model.vpng")
    again = BayesianLogisticRegression.load(tmp_path / "model.vpng")
    np.testing.assert_array_equal(again.predict_proba(ROWS), fitted.predict_proba(ROWS))
