"""Score-function gradients against exact enumeration of Bernoulli and Categorical latents.

Tolerances: 5 standard errors of the mean over keys for each of at most 7 numbers.
"""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.special import expit, softmax

from problems_for_tests import ChoiceGlobal, SwitchGlobal, SwitchLocal
from vpng import (
    ELBO,
    InputError,
    Parameters,
    Predictive,
    ScoreFunction,
    Variational,
    fit,
    optimizers,
    scale_by_vpng,
)

pytestmark = pytest.mark.usefixtures("x64")

DATA = np.array([0.4, 1.9, -0.7])
LOGITS = {"choice": np.array([0.5, -1.0, 0.2, 0.9])}
NUM_KEYS = 20_000


def parameters(kind="local"):
    logits = LOGITS.get(kind, np.array([0.5, -1.0]))
    return Parameters(*map(jax.device_put, (logits, np.array([0.8, 1.5]))))


def exact_global(p: Parameters):
    """-ELBO / n by summing over the four values of z."""
    total = 0.0
    on = jax.nn.sigmoid(p.variational)
    for z in product((0.0, 1.0), repeat=2):
        z = jnp.asarray(z)
        log_q = jnp.sum(jnp.log(jnp.where(z == 1, on, 1 - on)))
        log_joint = 2 * jnp.log(0.5) + jnp.sum(_log_normal(DATA - z @ p.model))
        total = total + jnp.exp(log_q) * (log_q - log_joint)
    return total / len(DATA)


def exact_local(p: Parameters):
    """-ELBO / n by summing over z_i in {0, 1} for each datum."""
    on = jax.nn.sigmoid(p.variational[0] + p.variational[1] * DATA)
    total = 0.0
    for z, q in ((0.0, 1 - on), (1.0, on)):
        log_joint = jnp.log(0.5) + _log_normal(DATA - p.model[0] - p.model[1] * z)
        total = total + jnp.sum(q * (jnp.log(q) - log_joint))
    return total / len(DATA)


def exact_choice(p: Parameters):
    """-ELBO / n by summing over the four values of z."""
    log_q = jax.nn.log_softmax(p.variational)
    outputs = p.model[0] + p.model[1] * jnp.arange(4.0)
    log_joint = jnp.log(0.25) + jnp.sum(_log_normal(DATA[:, None] - outputs), axis=0)
    return jnp.sum(jnp.exp(log_q) * (log_q - log_joint)) / len(DATA)


def _log_normal(residual):
    return -0.5 * residual**2 - 0.5 * jnp.log(2 * jnp.pi)


class OneDivergence(SwitchLocal):
    """One number for the KL of the whole batch."""

    def kl(self, parameters, latent, batch):
        return jnp.sum(super().kl(parameters, latent, batch))


CASES = {
    "global": (SwitchGlobal, exact_global),
    "local": (SwitchLocal, exact_local),
    "choice": (ChoiceGlobal, exact_choice),
}


@pytest.mark.parametrize("kind", [*CASES, "one KL"])
def test_unbiased(kind):
    cls, exact = {**CASES, "one KL": (OneDivergence, exact_local)}[kind]
    problem, p = cls(num_data=3), parameters(kind)
    objective = ELBO(3, gradient=ScoreFunction())

    def one(key):
        estimate, gradient = objective.estimate_and_gradient(key, problem, p, jax.device_put(DATA))
        return jnp.append(ravel_pytree(gradient)[0], estimate.loss)

    @jax.jit
    def compute(p, key):
        value, gradient = jax.value_and_grad(exact)(p)
        wanted = jnp.append(ravel_pytree(gradient)[0], value)
        return jax.vmap(one)(jax.random.split(key, NUM_KEYS)), wanted

    draws, wanted = map(np.asarray, compute(p, jax.random.key(0)))
    error = np.std(draws, axis=0) / np.sqrt(NUM_KEYS)
    assert (np.abs(np.mean(draws, axis=0) - wanted) < 5 * error).all()
    assert np.abs(wanted[:2]).min() > 5 * error[:2].max()  # a missing term would be seen


@pytest.mark.parametrize("kind", ["global", "local"])
def test_baseline_reduces_the_variance(kind):
    """The same draws without the baseline: the sum of f grad log q over particles."""
    cls, _ = CASES[kind]
    problem, p, data = cls(num_data=3), parameters(), jax.device_put(DATA)
    count = 4
    objective = ELBO(count, gradient=ScoreFunction())

    def without_baseline(key):
        def surrogate(lam):
            def one(key):
                z = jax.lax.stop_gradient(
                    problem.latent(p.variational, problem.noise(key, data), data)
                )
                fit = jnp.sum(problem.likelihood(p.model, z, data).log_prob(data))
                log_q = jnp.sum(problem.approximation(lam, data).log_prob(z))
                log_p = jnp.sum(problem.prior(p.model, data).log_prob(z))
                f = (jax.lax.stop_gradient(log_q) - log_p - fit) / 3
                return f * log_q

            return jnp.mean(jax.vmap(one)(jax.random.split(key, count)))

        return jax.grad(surrogate)(p.variational)

    def with_baseline(key):
        return objective.estimate_and_gradient(key, problem, p, data)[1].variational

    @jax.jit
    def draws(key):
        keys = jax.random.split(key, 2000)
        return [jax.vmap(f)(keys) for f in (with_baseline, without_baseline)]

    spread = [np.asarray(each).std(axis=0) for each in draws(jax.random.key(1))]
    assert (spread[0] < 0.8 * spread[1]).all()


def test_one_kl_for_the_whole_batch_is_the_sum_of_those_of_its_data():
    objective, p, key = ELBO(5, gradient=ScoreFunction()), parameters(), jax.random.key(0)

    @jax.jit
    def estimates(p):
        problems = OneDivergence(num_data=3), SwitchLocal(num_data=3)
        return [objective.estimate(key, problem, p, jax.device_put(DATA)) for problem in problems]

    one, each = estimates(p)
    np.testing.assert_allclose(one, each, rtol=1e-12)


def test_the_value_is_not_moved_by_the_scores():
    problem, p, data = SwitchLocal(num_data=3), parameters(), jax.device_put(DATA)
    objective = ELBO(5, gradient=ScoreFunction())
    key = jax.random.key(0)

    @jax.jit
    def losses(p):
        again, _ = objective.estimate_and_gradient(key, problem, p, data)
        surrogate, each = objective._surrogate(key, problem, p, data, 0)
        return objective.estimate(key, problem, p, data).loss, again.loss, surrogate, each

    loss, again, surrogate, each = losses(p)
    assert float(loss) == pytest.approx(np.asarray(each).mean(), rel=1e-12)
    assert float(again) == pytest.approx(float(loss), rel=1e-12)
    assert float(surrogate) == pytest.approx(float(loss), rel=1e-12)


def test_needs_two_particles():
    problem, p = SwitchLocal(num_data=3), parameters()
    estimate = partial(ELBO(1, gradient=ScoreFunction()).estimate, jax.random.key(0), problem)
    with pytest.raises(InputError, match=r"num_particles: expected at least 2 .* got 1"):
        jax.eval_shape(estimate, p, DATA)


def test_reparameterised_gradients_are_refused_where_they_would_be_wrong():
    """No gradient flows through Bernoulli draws: a term would be missing in silence."""
    problem, p = SwitchLocal(num_data=3), parameters()
    assert not problem.reparameterised(p.variational, jax.device_put(DATA))
    estimate = partial(ELBO(2).estimate_and_gradient, jax.random.key(0), problem)
    with pytest.raises(InputError, match=r"gradient: expected ScoreFunction\(\)"):
        jax.eval_shape(estimate, p, DATA)


@pytest.mark.parametrize("kind", CASES)
def test_the_documented_curvature_of_such_parameters(kind):
    """Predictive() + Variational(): theta gets the predictive Fisher, lambda the classic F_q."""
    cls, _ = CASES[kind]
    problem, p, data = cls(num_data=3), parameters(kind), jax.device_put(DATA)
    key = jax.random.key(0)
    metrics = Predictive(num_particles=4000) + Variational(), Predictive(num_particles=4000)
    dense = jax.jit(lambda p: [m.operator(problem, p, data, key).to_dense() for m in metrics])
    both, predictive = map(np.asarray, dense(p))
    variational = np.asarray(p.variational)
    size = len(variational)
    assert np.abs(predictive[:size]).max() == 0.0
    assert np.abs(both[:size, size:]).max() == 0.0
    if kind == "choice":
        probs, z = softmax(variational), np.arange(4)
        wanted_q = (np.diag(probs) - np.outer(probs, probs)) / 3
        wanted_r = np.array([[1.0, probs @ z], [probs @ z, probs @ z**2]])
    elif kind == "global":
        on = expit(variational)
        wanted_q = np.diag(on * (1 - on)) / 3
        wanted_r = np.outer(on, on) + np.diag(on * (1 - on))  # E[z z^T]
    else:
        on = expit(variational[0] + variational[1] * DATA)
        inputs = np.stack([np.ones(3), DATA])
        wanted_q = (inputs * on * (1 - on)) @ inputs.T / 3
        wanted_r = np.array([[1.0, on.mean()], [on.mean(), on.mean()]])
    np.testing.assert_allclose(both[:size, :size], wanted_q, rtol=1e-10, atol=1e-15)
    # 4,000 draws of a binary variable: a standard error of at most 0.008 (less for 3 data). Of one
    # out of four values, whose squares are up to 9: at most 0.071.
    np.testing.assert_allclose(
        both[size:, size:], wanted_r, atol=0.36 if kind == "choice" else 0.04
    )


def test_that_curvature_is_the_default():
    problem, p, data = SwitchGlobal(num_data=3), parameters(), jax.device_put(DATA)
    gradient = jax.tree.map(jnp.ones_like, p)

    @jax.jit
    def directions(p):
        metrics = None, Predictive() + Variational(), Predictive()
        rules = [scale_by_vpng(problem, metric=metric, damping=1e-3) for metric in metrics]
        extras = {"batch": data, "rng_key": jax.random.key(0)}
        return [rule.update(gradient, rule.init(p), p, **extras)[0] for rule in rules]

    default, both, predictive = map(ravel_numpy, directions(p))
    np.testing.assert_array_equal(default, both)
    # F_r alone leaves lambda to the damping.
    np.testing.assert_allclose(predictive[:2], 1e3)
    assert np.abs(default[:2]).max() < 100


def test_a_discrete_latent_is_learned_by_the_default_rule():
    """The gap to the best q at the same theta, exact: the model's evidence closes the ELBO."""
    problem, start, data = ChoiceGlobal(num_data=3), parameters("choice"), jax.device_put(DATA)
    objective = ELBO(10, gradient=ScoreFunction())
    rule = optimizers.vpng(problem, 0.1)
    result = fit(
        *(problem, start, data, rule, 200, jax.random.key(0)), objective=objective, progress=False
    )
    logits = lambda p: (
        -jnp.sum((DATA[:, None] - p.model[0] - p.model[1] * jnp.arange(4.0)) ** 2 / 2, axis=0)
    )
    gap = jax.jit(lambda p: exact_choice(p) - exact_choice(p._replace(variational=logits(p))))
    assert float(gap(start)) > 0.3
    assert float(gap(result.params)) < 0.03


def ravel_numpy(tree):
    return np.asarray(ravel_pytree(tree)[0])
