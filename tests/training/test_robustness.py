"""Problems that break optimizers: nothing is ever NaN, and a run arrives or says why it did not."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import ELBO, LevenbergMarquardt, optimizers
from vpng.problems import GaussianMean, LogisticRegression, mlp_vae
from vpng.problems.likelihoods import PoissonLikelihood
from vpng.training import Loop, StopReason, iterate_averaged

pytestmark = pytest.mark.endurance

KEY = jax.random.key(0)


def run(loop, params, num_steps):
    """The result, and that every record was finite."""

    def look(record, state):
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))

    return loop.run(loop.init(params, KEY), num_steps, callbacks=[look], progress=False)


def test_the_toy_in_single_precision():
    """Correlation 1 - 1e-6: the optimum is the posterior mean, in closed form in float64.

    The noise of q has the posterior's own scale sqrt(epsilon) in the narrow direction, so that
    steps of 0.3 with ten particles leave 0.2 sqrt(epsilon) of it, a fiftieth of a nat a datum.
    """
    epsilon = 1e-6
    covariance = np.array([[1.0, 1.0 - epsilon], [1.0 - epsilon, 1.0]], np.float32)
    generator = np.random.default_rng(0)
    data = generator.multivariate_normal([1.0, 2.0], covariance, 30).astype(np.float32)
    problem = GaussianMean.create(jnp.asarray(covariance), 30, scale=float(np.sqrt(epsilon)))
    optimizer = optimizers.vpng(problem, 0.3, damping=1e-3)
    loop = Loop(problem, problem.init(), data, optimizer, record_every=50)
    result = run(loop, problem.init(), 100)
    root = np.asarray(problem.covariance_root, np.float64)
    wanted = np.linalg.solve(30 * np.eye(2) + root @ root.T, data.astype(np.float64).sum(axis=0))
    off = np.linalg.solve(root, np.asarray(result.params.variational, np.float64) - wanted)
    assert 0.5 * float(off @ off) < 0.5
    assert result.stop_reason is StopReason.STEPS


def test_logistic_regression_from_far_off():
    """A flat prior, and guides that are far too narrow or far too wide.

    The narrow one arrives where a start of scale 0.1 does, to a tenth of a nat a datum; the wide
    one arrives there too, or stops with its parameters finite and a word.
    """
    generator = np.random.default_rng(1)
    covariates = generator.normal(size=(60, 3))
    labels = generator.random(60) < 1 / (1 + np.exp(-covariates @ [2.0, -1.0, 0.5]))
    problem, data = LogisticRegression.create(covariates, labels.astype(float), prior_scale=1e4)
    damping = LevenbergMarquardt(initial=1e-2, objective=ELBO(4))
    optimizer = optimizers.vpng(problem, 0.3, damping=damping)
    loop = Loop(problem, problem.init(KEY, 4), data, optimizer, record_every=100)
    estimate = jax.jit(lambda params: ELBO(200).estimate(KEY, problem, params, data).loss)
    near, narrow = (run(loop, problem.init(KEY, 4, scale=scale), 500) for scale in (0.1, 1e-6))
    assert float(estimate(narrow.params)) < float(estimate(near.params)) + 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wide = run(loop, problem.init(KEY, 4, scale=1e3), 500)
    if wide.stop_reason is StopReason.STEPS:
        assert float(estimate(wide.params)) < float(estimate(near.params)) + 0.1
    else:
        assert wide.stop_reason is StopReason.NOT_FINITE
        assert wide.causes


def autoencoder(rows, num_steps, **options):
    setup = mlp_vae(KEY, rows, latent_dim=2, hidden=(8,), **options)
    problem, params, data = setup
    optimizer = optimizers.network_vpng(problem, params, data, batch_size=20)
    loop = Loop(
        problem,
        params,
        data,
        optimizer,
        objective=ELBO(1),
        batch_size=20,
        record_every=50,
        readout=iterate_averaged,
    )
    return run(loop, params, num_steps)


def test_an_autoencoder_with_dead_inputs():
    """Of 30 pixels 20 never change; the entropy of the others is the best a model can do."""
    images = (np.random.default_rng(0).random((100, 30)) < 0.5).astype(np.float32)
    images[:, 10:] = 0.0
    images[:, 11] = 1.0
    result = autoencoder(images, 300)
    assert 0.0 < result.history.records[-1].loss < 1.1 * 10 * np.log(2)
    assert int(result.state.rejected) == 0


def test_poisson_rates_near_zero_and_huge():
    """Columns of both kinds side by side; the loss falls from where the run began."""
    rates = np.array([1e-3, 1e-3, 2e4, 2e4, 2e4])
    rows = np.random.default_rng(0).poisson(rates, (60, 5)).astype(np.float32)
    result = autoencoder(rows, 300, likelihood=PoissonLikelihood())
    losses = result.history.column("loss")
    assert losses[-1] < losses[0]
    assert np.isfinite(losses).all()


@pytest.mark.filterwarnings("ignore:vpng")
def test_a_step_a_hundred_times_too_long_stops_with_a_word():
    problem = GaussianMean.create(jnp.array([[1.0, 0.9], [0.9, 1.0]]), 20)
    data = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    optimizer = optimizers.vpng(problem, 100.0, damping=1e-3)
    loop = Loop(problem, problem.init(), data, optimizer, record_every=20)
    result = run(loop, problem.init(), 1000)
    assert result.stop_reason is StopReason.NOT_FINITE
    assert "learning rate" in result.stop_reason.value
    assert "loss at step" in result.causes[0]
    assert int(result.state.step) < 100
