"""`Sampled` and `Probed`, pooled over particles or not, have `Exact` as their mean.

Tolerance. With one key every estimator draws the same eps, so the difference D of the estimated
and the exact matrix has mean zero exactly. From N independent keys the mean of D has a standard
error that the same draws estimate. An entry further than 5 standard errors from zero would come by
chance once in 1.7 million entries; there are about 3,000 here. That the tolerance is small beside
the matrix, so that a bias would be seen, is the second assertion.
"""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

from problems_for_tests import FAMILIES, LocalProblem, random_problem
from vpng import Exact, Predictive, Probed, Sampled, Variational
from vpng.fisher import has_closed_form

NUM_KEYS = 2000
ESTIMATORS = {
    "sampled": Sampled(2),
    "sampled, pooled": Sampled(1, pool_particles=True),
    "probed": Probed(2),
    "probed, pooled": Probed(1, pool_particles=True),
}


def differences(problem, parameters, batch, metrics, reference):
    """Mean and standard error of each metric minus the reference, and the reference's mean."""

    @jax.jit
    def compute(parameters, batch):
        def one(key):
            dense = lambda m: m.operator(problem, parameters, batch, key).to_dense()
            return [dense(metric) for metric in metrics], dense(reference)

        return jax.lax.map(one, jax.random.split(jax.random.key(11), NUM_KEYS))

    drawn, wanted = compute(parameters, batch)
    deltas = [np.asarray(matrices) - np.asarray(wanted) for matrices in drawn]
    return [
        (delta.mean(axis=0), delta.std(axis=0) / np.sqrt(NUM_KEYS), np.mean(wanted, axis=0))
        for delta in deltas
    ]


def assert_unbiased(mean, error, wanted):
    size = np.linalg.norm(wanted, 2)
    assert (np.abs(mean) <= 5 * error + 1e-6 * size).all()
    assert 5 * error.max() < 0.25 * size


@cache
def all_differences(kind, family):
    """Those of every estimator, from one compiled program with one reference."""
    metrics = [Predictive(estimator, num_particles=3) for estimator in ESTIMATORS.values()]
    setting = random_problem(kind, family, seed=5)
    return dict(
        zip(ESTIMATORS, differences(*setting, metrics, Predictive(num_particles=3)), strict=True)
    )


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize(("kind", "family"), [("local", "bernoulli"), ("global", "categorical")])
def test_mean_is_exact(kind, family, name):
    assert_unbiased(*all_differences(kind, family)[name])


def test_correlated_parameters_within_one_outcome():
    """A Gamma has correlated rows: the probes must mix them with the right signs."""
    setting = random_problem("local", "gamma", seed=5)
    metric = Predictive(Probed(1), num_particles=2)
    assert_unbiased(*differences(*setting, [metric], Predictive(num_particles=2))[0])


@pytest.mark.parametrize("kind", ["local", "global"])
def test_variational_metric(kind):
    setting = random_problem(kind, "normal", seed=5)
    assert_unbiased(*differences(*setting, [Variational(Sampled(4))], Variational())[0])


@cache
def spreads():
    """The size of the standard error of each estimator's matrix."""
    estimators = [Sampled(1), Sampled(8), Probed(1), Probed(8)]
    metrics = [Predictive(estimator, num_particles=1) for estimator in estimators]
    setting = random_problem("local", "bernoulli", seed=5)
    found = differences(*setting, metrics, Predictive(num_particles=1))
    sizes = [np.linalg.norm(error) for _, error, _ in found]
    return {"sampled": sizes[:2], "probed": sizes[2:]}


@pytest.mark.parametrize("name", ["sampled", "probed"])
def test_more_samples_have_less_variance(name):
    one, eight = spreads()[name]
    assert one / eight == pytest.approx(np.sqrt(8), rel=0.15)


def test_probes_have_less_variance_than_samples():
    """The reason for `Probed`: a sign vector has no fourth moment to speak of."""
    assert spreads()["probed"][0] < spreads()["sampled"][0]


PREDICTIVE, VARIATIONAL = Predictive(Probed(1), num_particles=1), Variational(Probed(1))


@pytest.mark.parametrize(
    "metric",
    [PREDICTIVE + VARIATIONAL, PREDICTIVE + PREDICTIVE, PREDICTIVE + (VARIATIONAL + PREDICTIVE)],
    ids=["two kinds", "one kind twice", "one kind twice, nested"],
)
def test_rows_of_different_terms_are_independent(metric):
    """What random signs promise: the outer product of the sum of all rows has F as its mean."""
    problem, parameters, batch = random_problem("local", "normal", seed=5)

    @jax.jit
    def compute(parameters):
        def one(key):
            operator = metric.operator(problem, parameters, batch, key)
            assert operator.random_signs
            row, _ = ravel_pytree(operator.pull(jnp.ones(operator.num_rows)))
            return jnp.outer(row, row), operator.to_dense()

        return jax.lax.map(one, jax.random.split(jax.random.key(11), NUM_KEYS))

    outer, dense = map(np.asarray, compute(parameters))
    delta = outer - dense
    error = delta.std(axis=0) / np.sqrt(NUM_KEYS)
    assert_unbiased(delta.mean(axis=0), error, dense.mean(axis=0))


def test_exact_rows_cannot_be_pooled():
    with pytest.raises(TypeError, match="pool_particles"):
        Exact(pool_particles=True)


class _Mixed(LocalProblem):
    """A likelihood with no closed form, beside one that has it."""

    def likelihood(self, model, latent, batch):
        outputs = jnp.exp(0.5 * (latent @ model["latents"]))
        counted = dist.DirichletMultinomial(outputs[:, :2], 4)
        return counted, FAMILIES["normal"](outputs, model)

    def observed(self, batch):
        return jnp.full((batch["inputs"].shape[0], 2), 2), batch["observed"]


def test_exact_falls_back_to_samples_site_by_site():
    _, parameters, batch = random_problem("local", "normal", seed=5)
    problem = _Mixed(num_data=3, family="normal")
    exact = Predictive(Exact(fallback=Sampled(2)), num_particles=2)
    probed = Predictive(Probed(2), num_particles=2)

    def look(parameters):
        sites = problem.likelihood(parameters.model, jnp.ones((3, 2)), batch)
        assert [has_closed_form(site) for site in sites] == [False, True]
        operators = [
            metric.operator(problem, parameters, batch, jax.random.key(0))
            for metric in (exact, probed)
        ]
        # Particles, data, then samples and (loc, scale), or probes of each site.
        num_rows = [2 * 3 * (2 + 2), 2 * 3 * 2 * 2]
        assert [operator.num_rows for operator in operators] == num_rows

    jax.eval_shape(look, parameters)
    # Both estimate the same matrix; here only the first site is random.
    sampled = Predictive(Sampled(4), num_particles=2)
    assert_unbiased(*differences(problem, parameters, batch, [sampled], exact)[0])
