"""What the metric and the gradient of the automatic rule are for models of every kind."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO, autoguide

from vpng.adaptive import Linearised, ManyLocations
from vpng.fisher import BayesianNetwork, has_closed_form
from vpng.numpyro import SVI, Call
from vpng.numpyro.evaluation import Losses
from vpng.numpyro.guides import geometry_of

KEY = jax.random.key(3)


def constrained(y):
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    bounded = numpyro.sample("bounded", dist.Uniform(jnp.zeros(2), jnp.ones(2)))
    with numpyro.plate("data", y.size):
        numpyro.sample("y", dist.Normal(share @ jnp.arange(3.0) + bounded.sum(), scale), obs=y)


@pytest.mark.parametrize("guide", [autoguide.AutoNormal, autoguide.AutoMultivariateNormal])
def test_the_gradient_is_that_of_numpyros_loss(x64, guide):
    """With one particle in each half nothing is centred, and both are the same function."""
    y = jnp.array([0.3, 1.7, 0.9, 2.2])
    svi = SVI(constrained, guide(constrained), loss=Trace_ELBO(num_particles=2))
    params = svi.init(KEY, y).optim_state.accepted
    problem = svi.problem
    geometry = geometry_of(svi.guide, problem, params)
    losses = Losses.drawn(KEY, svi.loss, problem, Call((y,), {}, {}, {}), with_scores=True)
    keys = losses.draws.key.reshape(-1)

    def numpyros(variational):
        values = problem.constrained(variational)
        alone = lambda key: Trace_ELBO().loss(key, values, constrained, svi.guide, y)
        return jnp.mean(jax.vmap(alone)(keys)) / problem.num_data

    @jax.jit
    def both(params):
        halves = geometry.evaluate(losses, params).gradients.variational
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), halves), jax.grad(numpyros)(
            params.variational
        )

    found, wanted = both(params)
    assert geometry.num_blocks == 2
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("guide", [autoguide.AutoNormal, autoguide.AutoDiagonalNormal])
def test_scores_are_noise_over_scale_on_any_support(guide):
    """Of a sparse simplex too, whose inverse transform has no digits left in single precision."""
    sparse = lambda: numpyro.sample("p", dist.Dirichlet(jnp.full(20, 0.05)))
    svi = SVI(sparse, guide(sparse, init_scale=2.0))
    params = svi.init(KEY).optim_state.accepted
    problem = svi.problem
    name = "p_auto" if guide is autoguide.AutoNormal else "auto"
    moved = {**params.variational, f"{name}_loc": jnp.linspace(-12.0, 12.0, 19)}

    @jax.jit
    def scores(variational):
        one = lambda key: problem.score(variational, lambda lam: lam, key, Call((), {}, {}, {}))
        return jax.vmap(one)(jax.random.split(KEY, 400))[f"{name}_loc"]

    noises = 2.0 * np.asarray(scores(moved))
    # 7,600 standard normal numbers: none beyond 6, and means of 400 within 5 / 20.
    assert np.abs(noises).max() < 6.0
    assert np.abs(noises.mean(axis=0)).max() < 0.25
    np.testing.assert_allclose(noises.std(axis=0), 1.0, atol=0.25)


@pytest.mark.parametrize("array", [False, True])
def test_bounds_that_are_arrays_are_no_flow(array):
    low, high = (jnp.zeros(2), jnp.ones(2)) if array else (0.0, 1.0)
    model = lambda: numpyro.sample("p", dist.Uniform(low, high))
    svi = SVI(model, autoguide.AutoNormal(model))
    svi.init(KEY)
    assert svi.problem.held_density


@pytest.mark.parametrize("guide", [autoguide.AutoIAFNormal, autoguide.AutoBNAFNormal])
def test_flows_are(guide):
    model = lambda: numpyro.sample("z", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    svi = SVI(model, guide(model))
    svi.init(KEY)
    assert not svi.problem.held_density


X = np.concatenate([np.random.default_rng(0).normal(m, 0.5, 60) for m in (-3.0, 0.0, 4.0)])


def mixture(x):
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("components", 3):
        loc = numpyro.sample("loc", dist.Normal(0.0, 5.0))
    with numpyro.plate("data", x.size):
        chosen = numpyro.sample(
            "chosen", dist.Categorical(weights), infer={"enumerate": "parallel"}
        )
        numpyro.sample("x", dist.Normal(loc[chosen], 0.5), obs=x)


def test_summed_discrete_latents_inform_their_parents(x64):
    """Given weights w a datum holds w_k / 0.25 about loc_k, and diag(1 / w) about w."""
    weights = np.array([0.2, 0.5, 0.3])

    def guide(x):
        share = numpyro.param("share", jnp.asarray(weights), constraint=constraints.simplex)
        numpyro.sample("weights", dist.Delta(share, event_dim=1))
        with numpyro.plate("components", 3):
            numpyro.sample("loc", dist.Delta(numpyro.param("centre", jnp.array([-3.0, 0.0, 4.0]))))

    x = jnp.asarray(X)
    svi = SVI(mixture, guide, loss=TraceEnum_ELBO())
    params = svi.init(KEY, x).optim_state.accepted
    problem, metric = svi.problem, BayesianNetwork(num_particles=100)
    assert problem.summed_names == {"chosen"}

    @jax.jit
    def both(params):
        flat, unravel = ravel_pytree(params)
        to_share = lambda v: problem.constrained(unravel(v).variational)["share"]
        operator = metric.operator(problem, params, Call((x,), {}, {}, {}), KEY)
        return operator.to_dense(), jax.jacfwd(to_share)(flat)

    found, jacobian = map(np.asarray, both(params))
    # The three centres come first. Shares of 180 * 100 draws: 5 standard errors are 0.015 or less.
    wanted = jacobian.T @ np.diag(1.0 / weights) @ jacobian
    wanted += np.diag(np.append(weights / 0.25, np.zeros(2)))
    np.testing.assert_allclose(found, wanted, atol=0.015 / 0.25)


def test_a_mixture_arrives_where_the_loss_sums_over_assignments():
    guide = autoguide.AutoNormal(handlers.block(mixture, hide=["chosen"]))
    x = jnp.asarray(X, jnp.float32)
    svi = SVI(mixture, guide, loss=TraceEnum_ELBO())
    result = svi.run(jax.random.key(1), 60, x, progress_bar=False)
    losses = np.asarray(result.losses)
    # Equal thirds, well apart: the means of the three are those of their data, whatever order.
    means = np.sort(np.asarray(result.params["loc_auto_loc"]))
    np.testing.assert_allclose(means, X.reshape(3, 60).mean(axis=1), atol=0.15)
    assert losses[-10:].mean() < losses[15:25].mean() + 2.0  # settled after a dozen steps


@pytest.mark.parametrize(
    ("batch", "num_steps", "geometry", "error"),
    [(80, 600, Linearised, 0.15), (None, 60, ManyLocations, 0.05)],
    ids=["minibatches", "whole"],
)
def test_more_latents_than_a_matrix_is_made_for(batch, num_steps, geometry, error):
    """The posterior of z_i given the level m is N((4 y_i + m) / 5, 1 / 5), and m is within 0.1 of
    the data's mean. In minibatches a datum is seen sixty times, with draws of deviation 0.45.
    """
    num_data = 800 if batch else 1300
    y = jnp.asarray(np.random.default_rng(0).normal(3.0, 1.1, num_data), jnp.float32)

    def levels(y):
        level = numpyro.sample("level", dist.Normal(0.0, 5.0))
        with numpyro.plate("data", num_data, subsample_size=batch):
            z = numpyro.sample("z", dist.Normal(level, 1.0))
            numpyro.sample("y", dist.Normal(z, 0.5), obs=numpyro.subsample(y, event_dim=0))

    svi = SVI(levels, autoguide.AutoNormal(levels))
    result = svi.run(jax.random.key(1), num_steps, y, progress_bar=False)
    accepted = result.state.optim_state.accepted
    assert type(geometry_of(svi.guide, svi.problem, accepted)) is geometry
    wanted = (4.0 * y + y.mean()) / 5.0
    assert np.abs(result.params["z_auto_loc"] - wanted).mean() < error
    assert np.median(result.params["z_auto_scale"]) == pytest.approx(0.447, abs=0.06)


@pytest.mark.parametrize("guide", [autoguide.AutoNormal, autoguide.AutoMultivariateNormal])
def test_a_likelihood_that_is_a_factor_has_its_own_curvature(guide):
    """A flat prior and a factor: no distribution is left to ask. Posterior N(mean y, 1 / 20)."""
    y = jnp.arange(20.0) / 10.0

    def flat(y):
        level = numpyro.sample("level", dist.ImproperUniform(constraints.real, (), ()))
        numpyro.factor("likelihood", dist.Normal(level, 1.0).log_prob(y).sum())

    result = SVI(flat, guide(flat)).run(KEY, 200, y, progress_bar=False)
    loc = next(value for name, value in result.params.items() if name.endswith("loc"))
    scale = next(value for name, value in result.params.items() if "scale" in name)
    np.testing.assert_allclose(np.ravel(loc), 0.95, atol=1e-3)
    np.testing.assert_allclose(np.ravel(scale), 20**-0.5, rtol=1e-3)


def test_a_parameter_that_only_a_factor_sees_moves_beside_the_others():
    y = jnp.arange(20.0) / 10.0

    def mixed(y):
        level = numpyro.sample("level", dist.Normal(0.0, 10.0))
        shift = numpyro.param("shift", 5.0)
        numpyro.factor("prior", -2.0 * (shift - 1.0) ** 2)
        with numpyro.plate("data", 20):
            numpyro.sample("y", dist.Normal(level, 1.0), obs=y)

    result = SVI(mixed, autoguide.AutoNormal(mixed)).run(KEY, 200, y, progress_bar=False)
    np.testing.assert_allclose(result.params["shift"], 1.0, atol=1e-3)
    # Precision 20 + 0.01, of which the data hold 20.
    np.testing.assert_allclose(result.params["level_auto_loc"], 19.0 / 20.01, atol=0.02)


class Tempered(dist.Normal):
    """A Normal whose density is its own."""

    def log_prob(self, value):
        return 0.01 * super().log_prob(value)


def test_a_subclass_with_a_density_of_its_own_has_no_closed_form():
    assert has_closed_form(dist.Normal(0.0, 1.0))
    assert not has_closed_form(Tempered(0.0, 1.0))
    assert not has_closed_form(Tempered(jnp.zeros(3), 1.0).to_event(1))
    for inherited in (
        dist.Chi2(3.0),
        dist.NegativeBinomial2(2.0, 1.0),
        dist.BetaProportion(0.3, 2.0),
    ):
        assert has_closed_form(inherited)


NEAR_COPIES = (lambda rng: rng.normal(size=(100, 1)) + 0.01 * rng.normal(size=(100, 3)))(
    np.random.default_rng(2)
)


@pytest.mark.parametrize("guide", [autoguide.AutoNormal, autoguide.AutoMultivariateNormal])
@pytest.mark.parametrize("damping", [None, 0.1, 1e-6])
def test_covariates_with_a_correlation_of_0_9999(guide, damping):
    """Within a nat of the best Normal in 150 steps, whatever the damping it starts from.

    The posterior is Normal with precision P: the best factorised q has its mean and the variances
    1 / P_ii, and misses the evidence by half of sum log P_ii - log det P.
    """
    x = jnp.asarray(NEAR_COPIES, jnp.float32)
    y = jnp.asarray(NEAR_COPIES @ [1.0, -1.0, 2.0], jnp.float32)

    def regression(x, y):
        weights = numpyro.sample("weights", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
        with numpyro.plate("data", 100):
            numpyro.sample("y", dist.Normal(x @ weights, 0.5), obs=y)

    result = SVI(regression, guide(regression), damping=damping).run(
        KEY, 150, x, y, progress_bar=False
    )
    assert np.isfinite(result.losses).all()
    design, target = np.asarray(x, np.float64), np.asarray(y, np.float64)
    precision = np.eye(3) / 100.0 + design.T @ design / 0.25
    mean = np.linalg.solve(precision, design.T @ target / 0.25)
    if guide is autoguide.AutoNormal:
        loc, scale = result.params["weights_auto_loc"], result.params["weights_auto_scale"]
        covariance = np.diag(np.asarray(scale, np.float64) ** 2)
        best = np.diag(1.0 / np.diag(precision))
    else:
        loc, tril = result.params["auto_loc"], np.asarray(result.params["auto_scale_tril"])
        covariance, best = tril.astype(np.float64) @ tril.T, np.linalg.inv(precision)

    def divergence(loc, covariance):
        away = np.asarray(loc, np.float64) - mean
        log_ratio = np.linalg.slogdet(covariance)[1] + np.linalg.slogdet(precision)[1]
        return 0.5 * (np.trace(precision @ covariance) + away @ precision @ away - 3 - log_ratio)

    assert divergence(loc, covariance) < divergence(mean, best) + 1.0
