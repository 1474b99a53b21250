"""`Exact()` against the definition: scores of every outcome x', averaged over p(x' | z)."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from problems_for_tests import SUPPORTS, random_problem
from vpng import Predictive, Variational

pytestmark = pytest.mark.usefixtures("x64")

NUM_PARTICLES = 2


def particles(problem, batch, rng_key, count):
    """The noise that a metric draws from this key."""
    noise_key, _ = jax.random.split(rng_key)
    return jax.vmap(problem.noise, in_axes=(0, None))(jax.random.split(noise_key, count), batch)


@lru_cache
def compiled(kind, family):
    problem, _, _ = random_problem(kind, family, seed=0)
    outcomes = np.asarray(SUPPORTS[family])

    def both(parameters, batch, rng_key):
        flat, unravel = ravel_pytree(parameters)
        noise = particles(problem, batch, rng_key, NUM_PARTICLES)

        def log_probs(vector):
            """log p(x' | z_ik) for every particle k, outcome x' and datum i."""
            eta = unravel(vector)

            def one(noise, outcome):
                z = problem.latent(eta.variational, noise, batch)
                return problem.likelihood(eta.model, z, batch).log_prob(outcome)

            over_outcomes = jax.vmap(one, in_axes=(None, 0))
            return jax.vmap(over_outcomes, in_axes=(0, None))(noise, outcomes)

        mass = jnp.exp(log_probs(flat))
        scores = jax.jacfwd(log_probs)(flat)
        average = NUM_PARTICLES * mass.shape[-1]
        wanted = jnp.einsum("kxi,kxip,kxiq->pq", mass, scores, scores) / average
        metric = Predictive(num_particles=NUM_PARTICLES)
        return metric.operator(problem, parameters, batch, rng_key).to_dense(), wanted

    return jax.jit(both)


@pytest.mark.parametrize(
    ("kind", "family"),
    [*(("local", family) for family in SUPPORTS), ("global", "categorical")],
)
@given(seed=st.integers(0, 10_000))
def test_predictive_fisher(kind, family, seed):
    _, parameters, batch = random_problem(kind, family, seed)
    exact, wanted = compiled(kind, family)(parameters, batch, jax.random.key(seed))
    assert np.abs(wanted).max() > 1e-6
    np.testing.assert_allclose(exact, wanted, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("kind", ["local", "global"])
def test_variational_fisher(kind):
    """Gaussian q in (mean, log scale): diag(1 / s^2, 2), weighted 1/B if local and 1/n if not."""
    problem, parameters, batch = random_problem(kind, "normal", seed=4, num_total=30)
    flat, unravel = ravel_pytree(parameters)

    def outputs(vector):
        q = problem.approximation(unravel(vector).variational, batch).base_dist
        return jnp.stack([jnp.broadcast_to(v, q.batch_shape) for v in (q.loc, jnp.log(q.scale))])

    @jax.jit
    def both(parameters):
        jacobian = jax.jacfwd(outputs)(flat)
        scale = jnp.exp(outputs(flat)[1])
        information = jnp.stack([1 / scale**2, jnp.full_like(scale, 2.0)])
        wanted = jnp.einsum("o...p,o...,o...q->pq", jacobian, information, jacobian)
        operator = Variational().operator(problem, parameters, batch, jax.random.key(0))
        return operator.to_dense(), wanted / (3 if kind == "local" else 30)

    actual, wanted = both(parameters)
    np.testing.assert_allclose(actual, wanted, rtol=1e-10, atol=1e-13)
    size = ravel_pytree(parameters.variational)[0].size
    assert np.abs(actual[size:]).max() == 0.0  # theta does not enter q
