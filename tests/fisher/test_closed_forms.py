"""The Fishers that the paper gives on paper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import Parameters, Predictive, Variational
from vpng.problems import GaussianMean, Labelled, LinearLatent, LogisticRegression, MeanField

pytestmark = pytest.mark.usefixtures("x64")


def dense(metric, problem, parameters, batch, seed=0):
    operator = lambda p: metric.operator(problem, p, batch, jax.random.key(seed))
    return jax.jit(lambda p: operator(p).to_dense())(parameters)


@pytest.mark.parametrize("num_particles", [1, 7])
def test_toy_predictive_fisher_is_the_precision(num_particles):
    """Section 3: F_r = n Sigma^-1, so Sigma^-1 per datum, for every draw of the noise."""
    covariance = jnp.array([[1.0, 0.95], [0.95, 1.0]])
    problem = GaussianMean.create(covariance, 4, scale=0.3)
    data = jnp.asarray(np.random.default_rng(0).normal(size=(4, 2)))
    metric = Predictive(num_particles=num_particles)
    actual = dense(metric, problem, Parameters(jnp.ones(2)), data)
    np.testing.assert_allclose(actual, np.linalg.inv(covariance), rtol=1e-10)


def test_toy_variational_fisher_is_isotropic():
    problem = GaussianMean.create(jnp.eye(2) + 0.4, 5, scale=0.3)
    data = jnp.zeros((5, 2))
    actual = dense(Variational(), problem, problem.init(), data)
    np.testing.assert_allclose(actual, np.eye(2) / 0.3**2 / 5, rtol=1e-12)


def test_mean_field_variational_fisher():
    """(loc, log scale): diag(1 / s^2, 2) / n."""
    problem = LogisticRegression(num_data=10)
    log_scale = jnp.array([-0.5, 0.2, 1.0])
    parameters = Parameters(MeanField(jnp.ones(3), log_scale))
    batch = Labelled(jnp.ones((4, 3)), jnp.ones(4))
    actual = dense(Variational(), problem, parameters, batch)
    wanted = np.diag(np.concatenate([np.exp(-2 * log_scale), np.full(3, 2.0)])) / 10
    np.testing.assert_allclose(actual, wanted, rtol=1e-12)


def test_logistic_predictive_fisher_is_the_weighted_gram_matrix():
    """Given w: X^T diag(p (1 - p)) X / n in w, pulled back by dw = (1, s eps)."""
    generator = np.random.default_rng(1)
    covariates = generator.normal(size=(6, 2))
    problem = LogisticRegression(num_data=6)
    parameters = Parameters(MeanField(jnp.array([0.3, -0.2]), jnp.array([-1.0, 0.1])))
    batch = Labelled(jnp.asarray(covariates), jnp.zeros(6))
    actual = dense(Predictive(num_particles=2), problem, parameters, batch, seed=3)
    loc, log_scale = map(np.asarray, (parameters.variational.loc, parameters.variational.log_scale))
    wanted = np.zeros((4, 4))
    for eps_key in jax.random.split(jax.random.split(jax.random.key(3))[0], 2):
        slope = np.exp(log_scale) * np.asarray(problem.noise(eps_key, batch))
        weights = loc + slope
        p = 1 / (1 + np.exp(-covariates @ weights))
        gram = covariates.T @ (covariates * (p * (1 - p))[:, None]) / 6
        jacobian = np.hstack([np.eye(2), np.diag(slope)])
        wanted += jacobian.T @ gram @ jacobian / 2
    np.testing.assert_allclose(actual, wanted, rtol=1e-10)


def test_linear_latent_fishers():
    """z = l x + s eps, x' ~ N(t z, 1): the score's Jacobian is (t x, z), so over eps

        F_r = [[t^2 m, t l m], [t l m, l^2 m + s^2]],  m = mean x^2,  and F_q = diag(m / s^2, 0).

    The average over 40,000 particles errs by 0.5 percent of the noise terms (4 data); 5 of those.
    """
    lam, theta, scale = 0.7, 0.4, 0.8
    data = jnp.array([0.5, -1.0, 2.0, 0.1])
    problem = LinearLatent(num_data=4, scale=scale)
    parameters = Parameters(jnp.asarray(lam), jnp.asarray(theta))
    m = float(jnp.mean(data**2))
    actual = dense(Predictive(num_particles=40_000), problem, parameters, data)
    wanted = [[theta**2 * m, theta * lam * m], [theta * lam * m, lam**2 * m + scale**2]]
    np.testing.assert_allclose(actual, wanted, atol=0.025)
    actual = dense(Variational(), problem, parameters, data)
    np.testing.assert_allclose(actual, np.diag([m / scale**2, 0.0]), rtol=1e-12)
