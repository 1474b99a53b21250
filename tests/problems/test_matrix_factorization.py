"""Variational matrix factorisation: its ELBO, its layers and its dropout."""

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats

import vpng
from vpng import ELBO, Exact, Predictive, Probed
from vpng.errors import InputError
from vpng.kronecker import discover
from vpng.problems import (
    MatrixFactorization,
    counted,
    expected_counts,
    leading_directions,
    paper_factorization,
    towards_mode,
)

COUNTS = np.random.default_rng(0).poisson(0.7, (6, 5)).astype(np.uint8)
KEY = jax.random.key(3)


def problem_and_parameters(**options):
    problem = MatrixFactorization(6, 5, 2, **options)
    return problem, problem.init(KEY, hidden=(4,))


def by_hand(parameters, counts, noise):
    """The ELBO per user in NumPy, written out."""
    inputs = np.log1p(counts.astype(float))
    first, second = parameters.variational
    hidden = np.maximum(inputs @ first.kernel + first.bias, 0.0)
    loc, log_scale = np.split(hidden @ second.kernel + second.bias, 2, axis=1)
    rate = np.log1p(np.exp((loc + np.exp(log_scale) * noise) @ parameters.model))
    divergence = 0.5 * (loc**2 + np.exp(2 * log_scale) - 1.0 - 2 * log_scale).sum()
    return (scipy.stats.poisson.logpmf(counts, rate).sum() - divergence) / len(counts)


def test_the_elbo_is_the_formula_of_the_paper(x64):
    problem, parameters = problem_and_parameters()
    data = counted(COUNTS)
    vpng.check_problem(problem, parameters, data)
    estimate = jax.jit(ELBO(1).estimate)(KEY, problem, parameters, data)
    (key,) = jax.random.split(KEY, 1)
    np.testing.assert_allclose(
        estimate.elbo, by_hand(parameters, COUNTS, problem.noise(key, data)), rtol=1e-10
    )


def test_the_whole_model_is_one_chain_of_layers():
    problem, parameters = problem_and_parameters()
    structure = discover(problem, parameters, counted(COUNTS), Predictive(Probed(1)))
    assert len(structure.layers) == 3
    assert not structure.others


def test_the_predictive_fisher_of_the_items_is_exact(x64):
    """For theta alone: E[z z^T] (x) diag(sigmoid^2 / softplus), averaged over users."""
    problem, parameters = problem_and_parameters()
    data = counted(COUNTS)

    @jax.jit
    def compute(parameters):
        metric = Predictive(Exact(), num_particles=1)
        noise_key, _ = jax.random.split(KEY)
        noise = problem.noise(jax.random.split(noise_key, 1)[0], data)
        latent = problem.latent(parameters.variational, noise, data)
        return metric.operator(problem, parameters, data, KEY).to_dense(), latent

    size = parameters.model.size
    found, latent = map(np.asarray, compute(parameters))
    found = found[-size:, -size:]
    outputs = latent @ np.asarray(parameters.model)
    information = scipy.special.expit(outputs) ** 2 / np.logaddexp(0.0, outputs)
    wanted = np.einsum("ui,uk,ul->kil", information, latent, latent) / 6
    blocks = np.zeros((2, 5, 2, 5))
    for item in range(5):
        blocks[:, item, :, item] = wanted[:, item, :]
    np.testing.assert_allclose(found, blocks.reshape(10, 10), atol=1e-10)


def test_dropout_hides_the_share_and_keeps_the_mean():
    problem, parameters = problem_and_parameters(dropout=0.4)
    data = counted(np.ones((6, 5), np.uint8))
    one_layer = problem.init(KEY, hidden=())

    @jax.jit
    def compute(key):
        noise = jax.vmap(problem.noise, in_axes=(0, None))(jax.random.split(key, 400), data)
        mean = lambda n: problem.encode_noisy(one_layer.variational, n, data)[0]
        return noise[1], jax.vmap(mean)(noise), problem.whole().encode(one_layer.variational, data)

    kept, found, (wanted, _) = jax.tree.map(np.asarray, compute(KEY))
    # 12,000 draws: the standard error of the share is 0.0045.
    assert kept.mean() == pytest.approx(0.6, abs=0.02)
    # One layer is linear, so the mean over masks is the value without a mask.
    error = 4 * found.std(axis=0) / np.sqrt(400)
    assert (np.abs(found.mean(axis=0) - wanted) <= error + 1e-6).all()
    assert problem.whole().dropout == 0.0
    assert np.isfinite(jax.jit(ELBO(2).estimate)(KEY, problem, parameters, data).loss)


def test_fold_in_gives_rates(x64):
    problem, parameters = problem_and_parameters()
    rates = expected_counts(problem, parameters, counted(COUNTS))
    loc, _ = problem.encode(parameters.variational, counted(COUNTS))
    np.testing.assert_allclose(rates, np.log1p(np.exp(np.asarray(loc @ parameters.model))))


def test_training_raises_the_elbo():
    problem, parameters = problem_and_parameters()
    data = counted(COUNTS)
    optimizer = vpng.optimizers.network_vpng(problem, parameters, data, 0.01, batch_size=6)
    result = vpng.fit(
        problem, parameters, data, optimizer, 60, KEY, objective=ELBO(1), progress=False
    )
    losses = result.history.step_losses
    assert losses[-10:].mean() < losses[:10].mean()


def test_the_papers_sizes():
    shapes = jax.eval_shape(lambda key: paper_factorization(key, 10, 7)[1], KEY)
    assert [layer.kernel.shape for layer in shapes.variational] == [
        (7, 300),
        (300, 300),
        (300, 200),
    ]
    assert shapes.model.shape == (100, 7)


def test_refinement_ends_at_the_mode_of_the_posterior(x64):
    """Where the derivative of log p(R, beta), written with SciPy and differenced, is zero."""
    theta = np.random.default_rng(1).normal(size=(2, 5))
    found = np.asarray(towards_mode(theta, np.zeros((6, 2)), COUNTS, 60))

    def log_joint(beta, row):
        rates = np.logaddexp(0.0, beta @ theta)
        return scipy.stats.poisson.logpmf(row, rates).sum() - 0.5 * beta @ beta

    for beta, row in zip(found, COUNTS, strict=True):
        for shift in 1e-5 * np.eye(2):
            slope = (log_joint(beta + shift, row) - log_joint(beta - shift, row)) / 2e-5
            assert abs(slope) < 1e-6


def test_directions_need_users():
    assert leading_directions(16_000, 500) == 500
    assert leading_directions(9_000, 500) == 300
    assert leading_directions(370, 1297) == 150


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dropout": 1.0}, "dropout"), ({"dropout": -0.1}, "dropout"), ({"latent_dim": 0}, "latent")],
)
def test_bad_settings(options, message):
    with pytest.raises(InputError, match=message):
        MatrixFactorization(**{"num_data": 6, "num_items": 5, "latent_dim": 2, **options})


def test_rows_of_another_width_are_refused():
    problem, parameters = problem_and_parameters()
    with pytest.raises(InputError, match="rows of 5 items"):
        problem.encode(parameters.variational, counted(np.ones((2, 4), np.uint8)))
