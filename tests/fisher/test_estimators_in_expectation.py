"""`Sampled` and `Probed`, pooled over particles or not, have `Exact` as their mean.

Tolerance. With one key every estimator draws the same eps, so the difference D of the estimated
and the exact matrix has mean zero exactly. From N independent keys the mean of D has a standard
error that the same draws estimate. An entry further than 5 standard errors from zero would come by
chance once in 1.7 million entries; there are about 3,000 here. That the tolerance is small beside
the matrix, so that a bias would be seen, is the second assertion.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from problems_for_tests import FAMILIES, LocalProblem, random_problem
from vpng import Exact, Predictive, Probed, Sampled, Variational
from vpng.fisher import has_closed_form

NUM_KEYS = 3000
ESTIMATORS = {
    "sampled": Sampled(2),
    "sampled, pooled": Sampled(1, pool_particles=True),
    "probed": Probed(2),
    "probed, pooled": Probed(1, pool_particles=True),
}


def differences(problem, parameters, batch, metric, reference):
    """Mean and standard error of the difference of two metrics, and the mean of the reference."""

    @jax.jit
    def compute(parameters, batch):
        def one(key):
            dense = lambda m: m.operator(problem, parameters, batch, key).to_dense()
            wanted = dense(reference)
            return dense(metric) - wanted, wanted

        delta, wanted = jax.lax.map(one, jax.random.split(jax.random.key(11), NUM_KEYS))
        return jnp.mean(delta, 0), jnp.std(delta, 0) / jnp.sqrt(NUM_KEYS), jnp.mean(wanted, 0)

    return [np.asarray(value) for value in compute(parameters, batch)]


def assert_unbiased(mean, error, wanted):
    size = np.linalg.norm(wanted, 2)
    assert (np.abs(mean) <= 5 * error + 1e-6 * size).all()
    assert 5 * error.max() < 0.25 * size


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(("kind", "family"), [("local", "bernoulli"), ("global", "poisson")])
def test_mean_is_exact(kind, family, name):
    problem, parameters, batch = random_problem(kind, family, seed=5)
    metric = Predictive(ESTIMATORS[name], num_particles=3)
    assert_unbiased(*differences(problem, parameters, batch, metric, Predictive(num_particles=3)))


def test_correlated_parameters_within_one_outcome():
    """A Gamma has correlated rows: the probes must mix them with the right signs."""
    problem, parameters, batch = random_problem("local", "gamma", seed=5)
    metric = Predictive(Probed(1), num_particles=2)
    assert_unbiased(*differences(problem, parameters, batch, metric, Predictive(num_particles=2)))


@pytest.mark.parametrize("kind", ["local", "global"])
def test_variational_metric(kind):
    problem, parameters, batch = random_problem(kind, "normal", seed=5)
    metric = Variational(Sampled(4))
    assert_unbiased(*differences(problem, parameters, batch, metric, Variational()))


@pytest.mark.parametrize("name", ["sampled", "probed"])
def test_more_samples_have_less_variance(name):
    problem, parameters, batch = random_problem("local", "bernoulli", seed=5)
    one, many = (Sampled(1), Sampled(8)) if name == "sampled" else (Probed(1), Probed(8))
    reference = Predictive(num_particles=1)
    spread = [
        np.linalg.norm(
            differences(problem, parameters, batch, Predictive(e, num_particles=1), reference)[1]
        )
        for e in (one, many)
    ]
    assert spread[0] / spread[1] == pytest.approx(np.sqrt(8), rel=0.15)


def test_probes_have_less_variance_than_samples():
    """The reason for `Probed`: a sign vector has no fourth moment to speak of."""
    problem, parameters, batch = random_problem("local", "poisson", seed=5)
    reference = Predictive(num_particles=1)
    error = lambda e: np.linalg.norm(
        differences(problem, parameters, batch, Predictive(e, num_particles=1), reference)[1]
    )
    assert error(Probed(1)) < error(Sampled(1))


class _Inflated(LocalProblem):
    """A likelihood with no closed form, beside one that has it."""

    def likelihood(self, model, latent, batch):
        rate = jnp.exp(0.5 * (latent @ model["latents"]))
        return (
            dist.ZeroInflatedPoisson(0.3, rate[:, 0]),
            FAMILIES["normal"](rate, model),
        )

    def observed(self, batch):
        return jnp.zeros(batch["inputs"].shape[0]), batch["observed"]


def test_exact_falls_back_to_samples_site_by_site():
    _, parameters, batch = random_problem("local", "normal", seed=5)
    problem = _Inflated(num_data=3, family="normal")
    sites = problem.likelihood(parameters.model, jnp.ones((3, 2)), batch)
    assert [has_closed_form(site) for site in sites] == [False, True]
    exact = Predictive(Exact(fallback=Sampled(2)), num_particles=2)
    operator = exact.operator(problem, parameters, batch, jax.random.key(0))
    assert operator.num_rows == 2 * 3 * (2 + 2)  # particles, data, samples and (loc, scale)
    # Both estimate the same matrix; here only the first site is random.
    sampled = Predictive(Sampled(4), num_particles=2)
    assert_unbiased(*differences(problem, parameters, batch, sampled, exact))
    probed = Predictive(Probed(2), num_particles=2)
    assert probed.operator(problem, parameters, batch, jax.random.key(0)).num_rows == 2 * 3 * 2 * 2
