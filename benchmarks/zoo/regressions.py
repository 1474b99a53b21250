"""Regressions with covariates that are strongly correlated."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import scale

from zoo.case import Case, normal_guides


def correlated(
    rng: np.random.Generator, num_data: int, num_covariates: int, correlation: float
) -> np.ndarray:
    """Standard normal covariates, each pair with the same correlation."""
    common = rng.normal(size=(num_data, 1))
    own = rng.normal(size=(num_data, num_covariates))
    return np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own


def predictor(covariates: jax.Array, prior_scale: float = 10.0) -> jax.Array:
    intercept = numpyro.sample("intercept", dist.Normal(0.0, prior_scale))
    prior = dist.Normal(0.0, prior_scale).expand([covariates.shape[1]]).to_event(1)
    return intercept + covariates @ numpyro.sample("slopes", prior)


def linear(covariates: jax.Array, responses: jax.Array) -> None:
    mean = predictor(covariates)
    noise = numpyro.sample("noise", dist.HalfNormal(5.0))
    with numpyro.plate("data", covariates.shape[0]):
        numpyro.sample("response", dist.Normal(mean, noise), obs=responses)


def logistic(covariates: jax.Array, labels: jax.Array) -> None:
    logits = predictor(covariates)
    with numpyro.plate("data", covariates.shape[0]):
        numpyro.sample("label", dist.Bernoulli(logits=logits), obs=labels)


def poisson(covariates: jax.Array, counts: jax.Array) -> None:
    rate = jnp.exp(predictor(covariates))
    with numpyro.plate("data", covariates.shape[0]):
        numpyro.sample("count", dist.Poisson(rate), obs=counts)


def negative_binomial(covariates: jax.Array, counts: jax.Array) -> None:
    mean = jnp.exp(predictor(covariates))
    concentration = numpyro.sample("concentration", dist.Gamma(2.0, 0.5))
    with numpyro.plate("data", covariates.shape[0]):
        numpyro.sample("count", dist.NegativeBinomial2(mean, concentration), obs=counts)


def robust(covariates: jax.Array, responses: jax.Array) -> None:
    centre = predictor(covariates)
    noise = numpyro.sample("noise", dist.HalfNormal(5.0))
    freedom = numpyro.sample("freedom", dist.Gamma(2.0, 0.1))
    with numpyro.plate("data", covariates.shape[0]):
        numpyro.sample("response", dist.StudentT(freedom, centre, noise), obs=responses)


def cases() -> tuple[Case, ...]:
    rng = np.random.default_rng(0)
    near_copies = correlated(rng, 200, 5, 0.9999)
    line = near_copies @ rng.normal(size=5) + 0.5 * rng.normal(size=200)

    covariates = correlated(rng, 400, 8, 0.99)
    log_mean = np.clip(1.0 + 0.25 * covariates @ rng.normal(size=8), -5.0, 4.0)
    counts = rng.poisson(np.exp(log_mean))
    overdispersed = rng.poisson(np.exp(log_mean) * rng.gamma(2.0, 0.5, size=400))

    cancer, malignant = load_breast_cancer(return_X_y=True)
    diabetes, progression = load_diabetes(return_X_y=True)
    outlying = scale(progression) + np.where(
        rng.uniform(size=progression.size) < 0.05, rng.normal(0.0, 8.0, progression.size), 0.0
    )
    return (
        *normal_guides("linear, correlation 0.9999", linear, (near_copies, line)),
        *normal_guides("logistic, breast cancer", logistic, (scale(cancer), malignant)),
        *normal_guides("Poisson", poisson, (covariates, counts)),
        *normal_guides("negative binomial", negative_binomial, (covariates, overdispersed)),
        *normal_guides("robust, diabetes", robust, (scale(diabetes), outlying)),
    )
