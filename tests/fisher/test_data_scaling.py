"""The scale n/B enters the loss and the Fisher once: minibatches are unbiased for the whole."""

from functools import cache
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems_for_tests import LocalProblem, random_problem
from vpng import ELBO, Predictive, Variational

pytestmark = pytest.mark.usefixtures("x64")

KEY = 5


class SameNoise(LocalProblem):
    """Every datum has the same fixed noise, whichever batch it is in."""

    def noise(self, rng_key, batch):
        return jnp.full((batch["inputs"].shape[0], 2), 0.6)

    def latent(self, variational, noise, batch):
        mean = batch["inputs"] @ variational["weights"] + variational["bias"]
        return mean + jnp.exp(variational["log_scale"]) * noise


def setting(kind, num_data=4):
    problem, parameters, batch = random_problem(kind, "bernoulli", seed=2, num_data=num_data)
    if kind == "local":
        problem = SameNoise(num_data=num_data, family="bernoulli")
    return problem, parameters, jax.tree.map(np.asarray, batch)


@cache
def quantities(problem):
    """Loss, gradient, F_r and F_q of a batch, compiled."""

    @jax.jit
    def compute(parameters, batch):
        key = jax.random.key(KEY)
        estimate, gradient = ELBO(3).estimate_and_gradient(key, problem, parameters, batch)
        dense = lambda m: m.operator(problem, parameters, batch, key).to_dense()
        flat, _ = jax.flatten_util.ravel_pytree(gradient)
        return estimate.loss, flat, dense(Predictive(num_particles=3)), dense(Variational())

    return compute


@pytest.mark.parametrize("kind", ["local", "global"])
@pytest.mark.parametrize("size", [1, 2])
def test_the_mean_over_all_minibatches_is_the_whole(kind, size):
    """Exact: all subsets of the data, with noise that does not depend on the subset."""
    problem, parameters, data = setting(kind)
    compute = quantities(problem)
    whole = compute(parameters, data)
    parts = [
        compute(parameters, jax.tree.map(lambda leaf, c=chosen: leaf[np.array(c)], data))
        for chosen in combinations(range(4), size)
    ]
    for index, wanted in enumerate(whole):
        mean = np.mean([part[index] for part in parts], axis=0)
        np.testing.assert_allclose(mean, wanted, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", ["local", "global"])
def test_repeating_the_data_changes_nothing_per_datum(kind):
    """Twice the data, each twice: equal averages, except that a global KL weighs half as much."""
    problem, parameters, data = setting(kind)
    twice = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), data)
    doubled = type(problem)(num_data=8, family=problem.family)
    loss, _, predictive, variational = quantities(problem)(parameters, data)
    loss2, _, predictive2, variational2 = quantities(doubled)(parameters, twice)
    np.testing.assert_allclose(predictive2, predictive, rtol=1e-10, atol=1e-13)
    if kind == "local":
        np.testing.assert_allclose(loss2, loss, rtol=1e-12)
        np.testing.assert_allclose(variational2, variational, rtol=1e-10)
    else:
        # The analytic KL does not look at the latents.
        kl = jax.jit(problem.kl)(parameters, parameters.variational["bias"], data)
        loss, loss2, kl, variational = map(np.asarray, (loss, loss2, kl, variational))
        np.testing.assert_allclose(loss - loss2, kl / 4 - kl / 8, rtol=1e-9)
        np.testing.assert_allclose(variational2, variational / 2, rtol=1e-10)


@pytest.mark.parametrize("kind", ["local", "global"])
def test_n_times_the_loss_is_the_negative_elbo_of_the_data(kind):
    """-ELBO = -sum_i log p(x_i | z_i) + sum KL, written out for one particle."""
    problem, parameters, data = setting(kind)

    @jax.jit
    def both(parameters, data):
        key = jax.random.key(KEY)
        loss = ELBO(1).estimate(key, problem, parameters, data).loss
        noise = problem.noise(jax.random.split(key, 1)[0], data)
        z = problem.latent(parameters.variational, noise, data)
        log_likelihood = problem.likelihood(parameters.model, z, data).log_prob(data["observed"])
        q = problem.approximation(parameters.variational, data).base_dist
        mean, scale = q.loc, q.scale
        kl = 0.5 * (mean**2 + scale**2 - 1 - 2 * jnp.log(scale)) * jnp.ones_like(mean)
        return 4 * loss, -jnp.sum(log_likelihood) + jnp.sum(kl)

    np.testing.assert_allclose(*both(parameters, data), rtol=1e-12)
