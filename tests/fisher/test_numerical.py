"""Information by sums over values, against closed forms, brute force and samples' moments."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree

from vpng.fisher import whiten
from vpng.fisher.numerical import by_quadrature, by_second_derivatives

pytestmark = pytest.mark.usefixtures("x64")


def information(family, params, rule=whiten):
    """The matrix in the parameters, from the rows."""
    flat, unravel = ravel_pytree(params)

    @jax.jit
    def factor(flat):
        at = family(**unravel(flat))
        return jax.jacobian(lambda vector: rule(at, family(**unravel(vector))).ravel())(flat)

    rows = factor(flat)
    return rows.T @ rows


def by_scores(family, params, values, weights):
    """E[s s^T] over given values, by reverse differentiation."""
    flat, unravel = ravel_pytree(params)
    density = lambda vector: family(**unravel(vector)).log_prob(values)
    scores = jax.jit(jax.jacfwd(density))(flat)
    return scores.T @ (np.asarray(weights)[:, None] * scores)


CLOSED = {
    "Normal": (dist.Normal, {"loc": 0.3, "scale": 2.0}),
    "Gamma": (dist.Gamma, {"concentration": 2.5, "rate": 0.7}),
    "Weibull": (dist.Weibull, {"scale": 1.4, "concentration": 2.2}),
    "Gumbel": (dist.Gumbel, {"loc": -1.0, "scale": 0.6}),
    "Exponential": (dist.Exponential, {"rate": 3.0}),
    "Poisson": (dist.Poisson, {"rate": 2.3}),
    "many": (dist.Poisson, {"rate": 4000.0}),
    "NegativeBinomial2": (dist.NegativeBinomial2, {"mean": 6.0, "concentration": 1.7}),
}


@pytest.mark.parametrize("name", CLOSED)
def test_quadrature_gives_the_closed_forms(name):
    if name == "Gamma":
        pytest.importorskip("tensorflow_probability", reason="NumPyro's quantiles of it")
    family, params = CLOSED[name]
    params = {key: jnp.asarray(value) for key, value in params.items()}
    rule = lambda at, of: by_quadrature(at)(at, of)
    np.testing.assert_allclose(
        information(family, params, rule), information(family, params), rtol=2e-3, atol=1e-6
    )


def test_quantiles_that_cannot_be_had_are_no_error(monkeypatch):
    def missing(self, q):
        raise ImportError("Please install `tensorflow_probability`")

    monkeypatch.setattr(dist.Gamma, "icdf", missing)
    assert by_quadrature(dist.Gamma(2.5, 0.7)) is None


ALIKE = {
    "inflated": lambda gate, rate: dist.ZeroInflatedPoisson(gate, rate),
    "inflated logits": lambda gate, rate: dist.ZeroInflatedDistribution(
        dist.NegativeBinomial2(rate, 2.0), gate_logits=gate
    ),
    "hurdle": lambda gate, rate: dist.HurdlePoisson(gate, rate),
    "mixture": lambda gate, rate: dist.MixtureSameFamily(
        dist.Categorical(jnp.stack([gate, 1.0 - gate])), dist.Poisson(jnp.stack([rate, 9.0]))
    ),
    "beta binomial": lambda gate, rate: dist.BetaBinomial(rate, 1.0 + gate, 30),
}


@pytest.mark.parametrize("name", ALIKE)
def test_counts_are_summed_over_all_that_they_can_be(name):
    params = {"gate": 0.3, "rate": 2.5}
    values = jnp.arange(31 if name == "beta binomial" else 400)
    weights = jax.jit(lambda params: jnp.exp(ALIKE[name](**params).log_prob(values)))(params)
    wanted = by_scores(ALIKE[name], params, values, weights)
    np.testing.assert_allclose(information(ALIKE[name], params), wanted, rtol=1e-5, atol=1e-8)


SMOOTH = {
    "mixture": lambda a, b: dist.MixtureSameFamily(
        dist.Categorical(jnp.array([0.4, 0.6])), dist.Normal(jnp.stack([a, 3.0]), b)
    ),
    "truncated": lambda a, b: dist.TruncatedNormal(a, b, low=-0.5),
    "Kumaraswamy": lambda a, b: dist.Kumaraswamy(a + 1.0, b + 1.0),
    "hurdle": lambda a, b: dist.HurdleLogNormal(0.2 * b, a, b),
    "von Mises": lambda a, b: dist.VonMises(a, b),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_densities_are_integrated(name):
    """A trapezoid rule of a hundred thousand nodes on the line, or on the unit interval."""
    params = {"a": 0.4, "b": 1.3}
    family = SMOOTH[name]
    ends = {"Kumaraswamy": (0.0, 1.0), "von Mises": (-np.pi, np.pi), "hurdle": (0.0, 400.0)}
    low, high = ends.get(name, (-0.5 if name == "truncated" else -12.0, 14.0))
    width = (high - low) / 200_000
    values = low + width * (0.5 + np.arange(200_000))
    weights = width * np.exp(family(**params).log_prob(values))
    if name == "hurdle":
        values, weights = np.append(values, 0.0), np.append(weights, 0.26)
    wanted = by_scores(family, params, jnp.asarray(values), weights)
    np.testing.assert_allclose(information(family, params), wanted, rtol=5e-3, atol=1e-3)


def test_censored_data_have_the_size_of_their_second_derivatives():
    """Exponential with rate r: a time has 1 / r^2, and a bound t, log p = -r t, nothing."""
    values, censored = jnp.array([0.5, 2.0, 1.0]), jnp.array([0, 1, 0])
    rate = jnp.array([1.0, 2.0, 4.0])
    family = lambda rate: dist.RightCensoredDistribution(dist.Exponential(rate), censored)
    rows = jax.jacobian(lambda rate: by_second_derivatives(family(rate), values).ravel())(rate)
    wanted = np.diag(np.where(censored, 0.0, 1.0 / rate**2))
    np.testing.assert_allclose(rows.T @ rows, wanted, atol=1e-8)


def test_a_random_walk_knows_its_moves():
    at = {"scale": jnp.asarray(0.7)}
    walk = lambda scale: dist.GaussianRandomWalk(scale=scale, num_steps=12)
    np.testing.assert_allclose(information(walk, at), [[24.0 / 0.49]], rtol=1e-10)


def test_a_dirichlet_has_the_second_derivatives_of_its_normaliser():
    """An exponential family in its concentration: the Hessian is the same at any value."""
    params = {"concentration": jnp.array([0.7, 2.0, 4.5])}
    density = lambda a: dist.Dirichlet(a).log_prob(jnp.array([0.2, 0.3, 0.5]))
    wanted = -jax.hessian(density)(params["concentration"])
    np.testing.assert_allclose(information(dist.Dirichlet, params), wanted, rtol=1e-8)


def test_a_factor_of_low_rank_is_a_covariance():
    """The same rows as those of the Normal of full covariance."""
    params = {
        "loc": jnp.array([0.1, -1.0]),
        "cov_factor": jnp.array([[0.5], [1.2]]),
        "cov_diag": jnp.array([0.3, 0.8]),
    }

    def full(loc, cov_factor, cov_diag):
        covariance = cov_factor @ cov_factor.T + jnp.diag(cov_diag)
        return dist.MultivariateNormal(loc, scale_tril=jnp.linalg.cholesky(covariance))

    np.testing.assert_allclose(
        information(dist.LowRankMultivariateNormal, params), information(full, params), atol=1e-8
    )
