"""A linear regression with a Normal prior, and its posterior."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

NOISE = 0.5
COVARIATES = np.array([[1.0, 0.8], [-0.5, -0.3], [0.2, 0.4], [1.5, 1.1], [-1.0, -1.2], [0.3, 0.1]])
TARGETS = np.array([1.2, -0.4, 0.7, 1.9, -1.8, 0.1])


def data():
    return jnp.asarray(COVARIATES, float), jnp.asarray(TARGETS, float)


def regression(covariates, targets):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", 6):
        numpyro.sample("y", dist.Normal(covariates @ weights, NOISE), obs=targets)


def posterior() -> tuple[np.ndarray, np.ndarray]:
    """Mean and precision of w."""
    precision = np.eye(2) + COVARIATES.T @ COVARIATES / NOISE**2
    return np.linalg.solve(precision, COVARIATES.T @ TARGETS / NOISE**2), precision


def log_evidence() -> float:
    """Log p(y), by the marginal distribution of y."""
    covariance = COVARIATES @ COVARIATES.T + NOISE**2 * np.eye(6)
    _, log_determinant = np.linalg.slogdet(2 * np.pi * covariance)
    return float(-0.5 * (log_determinant + TARGETS @ np.linalg.solve(covariance, TARGETS)))


def divergence(location, covariance) -> float:
    """KL(q || p) of a Normal q from the posterior, in nats."""
    mean, precision = posterior()
    apart, product = np.asarray(location) - mean, precision @ np.asarray(covariance)
    _, log_determinant = np.linalg.slogdet(product)
    return float(0.5 * (np.trace(product) + apart @ precision @ apart - 2 - log_determinant))


def least_factorised_divergence() -> float:
    """KL(q || p) of the best q of independent weights: the posterior's mean, 1 / precision_ii."""
    mean, precision = posterior()
    return divergence(mean, np.diag(1.0 / np.diag(precision)))
