"""Functions and series: Gaussian processes and a state-space model."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan

from zoo.case import Case, normal_guides


def covariance(inputs: jax.Array) -> jax.Array:
    """A squared exponential whose length and variance are latent."""
    length = numpyro.sample("length", dist.LogNormal(-1.0, 1.0))
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    return variance * jnp.exp(-0.5 * ((inputs[:, None] - inputs) / length) ** 2)


def gaussian_process(inputs: jax.Array, responses: jax.Array) -> None:
    prior = covariance(inputs)
    noise = numpyro.sample("noise", dist.LogNormal(-1.0, 1.0))
    matrix = prior + (noise**2 + 1e-5) * jnp.eye(inputs.size)
    marginal = dist.MultivariateNormal(jnp.zeros(inputs.size), covariance_matrix=matrix)
    numpyro.sample("response", marginal, obs=responses)


def gaussian_process_classifier(inputs: jax.Array, labels: jax.Array) -> None:
    root = jnp.linalg.cholesky(covariance(inputs) + 1e-4 * jnp.eye(inputs.size))
    white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([inputs.size]).to_event(1))
    with numpyro.plate("data", inputs.size):
        numpyro.sample("label", dist.Bernoulli(logits=root @ white), obs=labels)


def local_level(series: jax.Array) -> None:
    drift = numpyro.sample("drift", dist.HalfNormal(1.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))

    def advance(level: jax.Array, value: jax.Array) -> tuple[jax.Array, None]:
        level = numpyro.sample("level", dist.Normal(level, drift))
        numpyro.sample("value", dist.Normal(level, noise), obs=value)
        return level, None

    scan(advance, jnp.zeros(()), series)


def cases() -> tuple[Case, ...]:
    rng = np.random.default_rng(2)
    inputs = np.linspace(0.0, 1.0, 40)
    wave = np.sin(8.0 * inputs)
    responses = wave + 0.2 * rng.normal(size=40)
    labels = (rng.uniform(size=40) < 1 / (1 + np.exp(-3.0 * wave))).astype(int)
    series = np.cumsum(0.5 * rng.normal(size=50)) + 0.3 * rng.normal(size=50)
    return (
        *normal_guides("GP regression", gaussian_process, (inputs, responses)),
        *normal_guides("GP classification", gaussian_process_classifier, (inputs, labels)),
        *normal_guides("state space", local_level, (series,)),
    )
