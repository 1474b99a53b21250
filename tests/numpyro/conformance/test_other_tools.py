"""Other people's tools take our objects and results as they take NumPyro's."""

from functools import cache

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.contrib.module import nnx_module
from numpyro.infer import MCMC, NUTS, Predictive, Trace_ELBO, autoguide, log_likelihood
from numpyro.infer import psis_diagnostic as psis
from numpyro.infer.initialization import init_to_value
from programs import KEY, Y
from small_models import normal_guide, normal_mean

from vpng.numpyro import SVI


@cache
def fitted_by(make):
    guide = autoguide.AutoNormal(normal_mean)
    svi = make(normal_mean, guide, Trace_ELBO(num_particles=4))
    return svi, svi.run(KEY, 3, Y, progress_bar=False)


@pytest.fixture
def fitted(make_usual):
    return fitted_by(make_usual)


def test_draws_of_the_posterior_and_of_new_data(fitted):
    svi, result = fitted
    draws = Predictive(svi.guide, params=result.params, num_samples=9)(KEY, Y)
    assert draws["mean"].shape == (9,)
    likelihoods = log_likelihood(normal_mean, draws, Y)["y"]
    expected = dist.Normal(draws["mean"][:, None], 1.0).log_prob(Y)
    np.testing.assert_allclose(likelihoods, expected, rtol=1e-5)
    # By guide and params at once, as in NumPyro's example.
    both = Predictive(normal_mean, guide=svi.guide, params=result.params, num_samples=9)
    assert both(KEY, Y)["y"].shape == (9, 5)


def test_pareto_smoothed_importance_sampling(fitted):
    svi, result = fitted
    k_hat = psis(KEY, result.params, normal_mean, svi.guide, Y, num_particles=100)
    assert np.isfinite(k_hat)


def test_arviz_reads_the_run(fitted):
    svi, result = fitted
    tree = arviz_base.from_numpyro_svi(svi, svi_result=result, model_args=(Y,), num_samples=20)
    assert tree["posterior"]["mean"].size == 20
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, Y)


def test_sampling_begins_at_the_answer(fitted):
    svi, result = fitted
    start = init_to_value(values=svi.guide.median(result.params))
    sampler = MCMC(NUTS(normal_mean, init_strategy=start), num_warmup=2, num_samples=2)
    sampler.run(KEY, Y)


def test_a_training_loop_that_hands_networks_over(make_usual):
    """A Flax module goes in, is trained with batches of its own, and comes out again."""
    x = np.linspace(-1.0, 1.0, 8, dtype=np.float32)[:, None]
    y = np.sin(2.0 * x[:, 0])
    net = nnx.Linear(1, 1, rngs=nnx.Rngs(0))

    def model(x, y):
        line = nnx_module("net", net)
        numpyro.sample("shift", dist.Normal(0.0, 0.1))
        with numpyro.plate("data", 8, subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(line(x)[:, 0], 0.3), obs=y)

    svi = make_usual(model, autoguide.AutoDelta(model), Trace_ELBO())
    state = svi.init(KEY, x[:4], y[:4])
    update = jax.jit(svi.update)
    for number in range(4):
        rows = slice(4 * (number % 2), 4 * (number % 2) + 4)
        state, loss = update(state, x[rows], y[rows])
        assert np.isfinite(loss)
    trained = svi.get_params(state)["net$params"]
    graph, _, rest = nnx.split(net, nnx.Param, ...)
    restored = nnx.merge(graph, nnx.State(trained), rest)
    np.testing.assert_allclose(
        restored(x), x @ trained["kernel"] + trained["bias"], rtol=1e-5, atol=1e-6
    )


def test_gradients_of_two_batches_are_one_step():
    """`optax.MultiSteps` moves parameters with every second gradient alone."""
    every_second = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=2)
    svi = SVI(normal_mean, normal_guide, every_second.gradient_transformation(), Trace_ELBO())
    state, update = svi.init(KEY, Y), jax.jit(svi.update)
    places = [svi.get_params(state)["location"]]
    for _ in range(4):
        state, _ = update(state, Y)
        places.append(svi.get_params(state)["location"])
    moved = [bool(one != other) for one, other in zip(places[1:], places[:-1], strict=True)]
    assert moved == [False, True, False, True]


def test_a_schedule_that_ends_at_zero_ends_the_steps():
    falling = optax.sgd(optax.piecewise_constant_schedule(0.1, {2: 0.0}))
    svi = SVI(normal_mean, normal_guide, falling, Trace_ELBO())
    state, update = svi.init(KEY, Y), jax.jit(svi.update)
    for _ in range(2):
        state, _ = update(state, Y)
    place = svi.get_params(state)["location"]
    state, _ = update(state, Y)
    assert svi.get_params(state)["location"] == place


def test_distributions_of_tensorflow_probability(make_usual):
    tfd = pytest.importorskip(
        "numpyro.contrib.tfp.distributions",
        reason="TensorFlow Probability is not installed",
        exc_type=ImportError,
    )

    def model(y):
        mean = numpyro.sample("mean", tfd.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", tfd.Normal(mean, 1.0), obs=jnp.asarray(y))

    svi = make_usual(model, autoguide.AutoNormal(model), Trace_ELBO())
    assert np.isfinite(svi.run(KEY, 2, Y, progress_bar=False).losses).all()
