"""The problem that is traced from a model and a guide, against closed forms and a written one."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.flows import BlockNeuralAutoregressiveTransform
from numpyro.infer import Trace_ELBO, TraceGraph_ELBO, autoguide
from scipy.special import expit

from vpng import ELBO, Exact, Parameters, Predictive, Sampled
from vpng.fisher import BayesianNetwork, Divergence
from vpng.fisher.families import has_closed_form
from vpng.fisher.unwrap import core_of
from vpng.numpyro import SVI, Call
from vpng.problems import LogisticRegression

KEY = jax.random.key(5)


class SameDraws(LogisticRegression):
    """The written problem with NumPyro's use of keys and its estimate of the KL."""

    def noise(self, rng_key, batch):
        return super().noise(jax.random.split(rng_key)[1], batch)

    def kl(self, parameters, latent, batch):
        log_q = self.approximation(parameters.variational, batch).log_prob(latent)
        return log_q - self.prior((), batch).log_prob(latent)


def logistic(covariates, labels):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", 5):
        numpyro.sample("y", dist.Bernoulli(logits=covariates @ weights), obs=labels)


def mean_field(covariates, labels):
    loc = numpyro.param("loc", jnp.array([0.3, -0.2, 0.1]))
    scale = numpyro.param("scale", jnp.array([0.5, 1.0, 0.2]), constraint=constraints.positive)
    numpyro.sample("w", dist.Normal(loc, scale).to_event(1))


def traced(model, guide, *data):
    svi = SVI(model, guide, loss=Trace_ELBO())
    state = jax.jit(svi.init)(KEY, *data)
    return svi.problem, state.optim_state.accepted, Call(data, {}, {}, {})


def dense(metric, problem, parameters, call):
    return jax.jit(lambda p: metric.operator(problem, p, call, KEY).to_dense())(parameters)


def test_traced_logistic_regression_is_the_written_one(x64):
    covariates = np.random.default_rng(1).normal(size=(5, 2))
    labels = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    written, batch = SameDraws.create(covariates, labels)
    problem, parameters, call = traced(logistic, mean_field, *batch)
    values = parameters.variational
    same = Parameters(type(written.init(KEY, 3).variational)(values["loc"], values["scale"]))
    assert problem.num_data == written.num_data == 5

    elbo = ELBO(num_particles=2)
    gradient = lambda problem, batch: jax.jit(
        lambda p: elbo.estimate_and_gradient(KEY, problem, p, batch)
    )
    ours, by_name = gradient(problem, call)(parameters)
    theirs, by_field = gradient(written, batch)(same)
    np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-12)
    np.testing.assert_allclose(by_name.variational["loc"], by_field.variational.loc, rtol=1e-10)
    np.testing.assert_allclose(
        by_name.variational["scale"], by_field.variational.log_scale, rtol=1e-10
    )
    metric = Predictive(num_particles=2)
    found = dense(metric, problem, parameters, call)
    np.testing.assert_allclose(found, dense(metric, written, same, batch), rtol=1e-10, atol=1e-14)
    # Without latents above latents the network has nothing to add.
    network = dense(BayesianNetwork(num_particles=2), problem, parameters, call)
    np.testing.assert_allclose(network, found, rtol=1e-10, atol=1e-14)


BETWEEN, WITHIN = 2.0, 0.5


def two_levels(values):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Normal(mean, BETWEEN))
        numpyro.sample("y", dist.Normal(level, WITHIN), obs=values)


def locations(values):
    numpyro.sample("mean", dist.Normal(numpyro.param("a", 0.1), 0.3))
    with numpyro.plate("groups", 3):
        numpyro.sample("level", dist.Normal(numpyro.param("b", jnp.zeros(3)), 0.3))


def test_two_level_network_is_the_posterior_precision(x64):
    problem, parameters, call = traced(two_levels, locations, jnp.array([1.0, -1.0, 2.0]))
    # Moving the locations moves the latents, and Normals have the same curvature everywhere.
    coupling = np.zeros((4, 4))
    for group in range(1, 4):
        apart = np.eye(4)[group] - np.eye(4)[0]
        coupling += np.outer(apart, apart) / BETWEEN**2
    likelihood = np.diag([0.0, 1.0, 1.0, 1.0]) / WITHIN**2
    prior = np.diag([1.0, 0.0, 0.0, 0.0]) / 3.0**2
    for metric, expected in [
        (Predictive(num_particles=2), likelihood),
        (BayesianNetwork(num_particles=2), likelihood + coupling),
        (
            BayesianNetwork(num_particles=2) + Divergence(num_particles=2),
            likelihood + coupling + prior,
        ),
    ]:
        found = dense(metric, problem, parameters, call)
        np.testing.assert_allclose(found, expected / 3, rtol=1e-10, atol=1e-12)


def scale_above(values):
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    rate = numpyro.param("rate", 0.7, constraint=constraints.positive)
    with numpyro.plate("groups", 3):
        level = numpyro.sample("level", dist.Gamma(1.0 + scale, rate))
        numpyro.sample("y", dist.Gamma(2.0, level * shares), obs=values)


@pytest.mark.parametrize("estimator", [Exact(with_misfit=True), Sampled(2)])
def test_metric_is_semidefinite_and_finite(x64, estimator):
    guide = autoguide.AutoDiagonalNormal(scale_above)
    problem, parameters, call = traced(scale_above, guide, jnp.array([1.0, 4.0, 2.0]))
    metric = BayesianNetwork(estimator, 3) + Divergence(estimator, 3)
    found = dense(metric, problem, parameters, call)
    values = np.linalg.eigvalsh(found)
    np.testing.assert_allclose(found, found.T, rtol=1e-9, atol=1e-12)
    assert values.min() > -1e-9 * values.max()
    assert np.all(np.diagonal(found) > 0)


def switch(values):
    on = numpyro.sample("on", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(jnp.where(on == 1, 2.0, 0.0), 1.0), obs=values)


def switch_guide(values):
    numpyro.sample("on", dist.Bernoulli(logits=numpyro.param("logit", 0.3)))


def test_discrete_latent_has_the_information_of_its_own_distribution(x64):
    svi = SVI(switch, switch_guide, loss=TraceGraph_ELBO())
    parameters = jax.jit(svi.init)(KEY, 1.5).optim_state.accepted
    call = Call((1.5,), {}, {}, {})
    metric = BayesianNetwork(num_particles=2) + Divergence(num_particles=2)
    found = dense(metric, svi.problem, parameters, call)
    variance = expit(0.3) * expit(-0.3)
    np.testing.assert_allclose(found, [[variance]], rtol=1e-10)


def test_network_of_a_flow_may_depend_on_parameters():
    flow = BlockNeuralAutoregressiveTransform(lambda inputs: (inputs, inputs))
    base = dist.Normal(jnp.zeros(2), 1.0).to_event(1)
    transformed = dist.TransformedDistribution(base, [flow])
    assert core_of(transformed, jnp.zeros(2)) is None
    assert not has_closed_form(transformed)


def test_a_parameter_of_both_has_one_value():
    def model(values):
        scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        with numpyro.plate("data", 4):
            numpyro.sample("y", dist.Normal(mean, scale), obs=values)

    def guide(values):
        scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
        numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.0), 0.1 * scale))

    problem, parameters, call = traced(model, guide, jnp.arange(4.0))
    parameters = Parameters({**parameters.variational, "scale": jnp.log(3.0)}, parameters.model)
    latent = problem.latent(parameters.variational, KEY, call)
    [site] = problem.likelihood_sites(parameters.model, latent, call)
    np.testing.assert_allclose(site.distribution.variance, 9.0, rtol=1e-5)
    [held] = problem.approximation_sites(parameters.variational, latent, call)
    np.testing.assert_allclose(held.distribution.variance, 0.09, rtol=1e-5)


@pytest.mark.parametrize("local", [False, True])
def test_parameters_of_single_data_are_told_from_others(local):
    def model(values):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        with numpyro.plate("data", 4, subsample_size=2):
            level = numpyro.sample("level", dist.Normal(mean, 1.0)) if local else mean
            numpyro.sample("y", dist.Normal(level, 0.5), obs=numpyro.subsample(values, 0))

    problem, _, _ = traced(model, autoguide.AutoNormal(model), jnp.arange(4.0))
    assert problem.by_datum == local


def test_a_flat_prior_beside_a_subsampled_plate():
    def model(values):
        shares = numpyro.sample("shares", dist.ImproperUniform(constraints.simplex, (), (3,)))
        with numpyro.plate("data", 4, subsample_size=2):
            chosen = numpyro.subsample(values, 0)
            numpyro.sample("y", dist.Categorical(shares), obs=chosen)

    problem, _, _ = traced(model, autoguide.AutoNormal(model), jnp.array([0, 1, 2, 0]))
    call = jax.eval_shape(lambda key: problem.call(key, (jnp.zeros(4, int),), {}, None), KEY)
    assert call.subsamples["data"].shape == (2,)
