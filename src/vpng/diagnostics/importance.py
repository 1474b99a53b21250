"""How good an approximation is, by the tail of its importance weights."""

import warnings

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.problem import AbstractProblem, Parameters


def log_weight(
    problem: AbstractProblem, parameters: Parameters, rng_key: PRNGKeyArray, batch: PyTree
) -> Float[Array, ""]:
    """Log p(x, z) - log q(z) at one draw z ~ q; a batch stands for all data."""
    noise = problem.noise(rng_key, batch)
    latent, ratio = problem.latent_and_log_ratio(parameters, noise, batch)
    sites = problem.likelihood_sites(parameters.model, latent, batch)
    densities = [jnp.sum(site.scale * site.distribution.log_prob(site.value)) for site in sites]
    return problem.num_data * (sum(densities) - problem.latent_weight(batch) * ratio)


def k_hat(
    rng_key: PRNGKeyArray,
    problem: AbstractProblem,
    parameters: Parameters,
    batch: PyTree,
    *,
    num_particles: int,
) -> float:
    """The shape of the generalised Pareto tail of the weights (Vehtari et al. 2024).

    NaN if all weights are the same or too few differ, as for an exact approximation or a point.
    """
    from numpyro.infer import psis_diagnostic

    weigh = jax.jit(lambda key: log_weight(problem, parameters, key, batch))

    def weights() -> None:
        # NumPyro draws a key for each particle and takes the sum of a model's log-densities.
        key = numpyro.prng_key()
        with numpyro.handlers.block():
            value = weigh(key)
        numpyro.factor("log_weight", value)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Not enough tail samples")
        value = psis_diagnostic(rng_key, {}, weights, lambda: None, num_particles=num_particles)
    return value if abs(value) < float("inf") else float("nan")
