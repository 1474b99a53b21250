"""Thousands of latents: covariances by products, and the metric that NUTS is given, by size."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from vpng.errors import InputError
from vpng.numpyro import infer
from vpng.posterior import Budget, UseIt
from vpng.posterior.metric import metric_of

GROUPS, EACH, NOISE = 1200, 5, 0.7


def groups(data):
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    with numpyro.plate("groups", data.shape[0]):
        level = numpyro.sample("level", dist.Normal(mean, 1.0))
    numpyro.sample("data", dist.Normal(level[:, None], NOISE).to_event(2), obs=data)


@pytest.fixture(scope="module")
def posterior():
    rng = np.random.default_rng(0)
    level = 1 + rng.normal(size=(GROUPS, 1))
    data = (level + NOISE * rng.normal(size=(GROUPS, EACH))).astype(np.float32)
    return infer(groups, data, budget=Budget(num_starts=1))


def test_covariances_of_chosen_quantities_are_exact(posterior):
    found = posterior.covariance_of(
        lambda values: jnp.stack([values["mean"], values["level"][0], values["level"].mean()])
    )
    # Given the mean m, a level has variance k and mean k m + ...
    of_mean = 1 / (1 / 25 + GROUPS / (1 + NOISE**2 / EACH))
    k = 1 / (1 + EACH / NOISE**2)
    shared = k**2 * of_mean
    exact = [
        [of_mean, k * of_mean, k * of_mean],
        [k * of_mean, k + shared, k / GROUPS + shared],
        [k * of_mean, k / GROUPS + shared, k / GROUPS + shared],
    ]
    # In single precision.
    np.testing.assert_allclose(found, exact, rtol=1e-4)
    assert isinstance(posterior.verdict, UseIt)


def test_a_matrix_of_all_of_them_is_not_formed(posterior):
    with pytest.raises(InputError, match="covariance_of"):
        posterior.covariance()


def test_the_metric_is_dense_for_few_and_a_diagonal_for_many(posterior):
    found = posterior.found
    metric = metric_of(posterior.density, found.modes[0].frame, found.draws)
    assert isinstance(metric, dict)
    assert {names: block.shape for names, block in metric.items()} == {
        ("mean",): (1, 1),
        ("level",): (GROUPS,),
    }
    sd = np.sqrt(1 / (1 + EACH / NOISE**2))
    # Deviations of at least a thousand draws, the farthest of 1,200 of them.
    np.testing.assert_allclose(np.sqrt(metric["level",]), sd, rtol=4.5 / np.sqrt(2 * 1000))
