"""What must not depend on how the problem is written down.

Tolerances of the Monte Carlo tests: two independent means of N draws differ by their joint standard
error, estimated from the draws; 5 of them for each of about 200 entries.
"""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from problems_for_tests import GlobalProblem, LocalProblem, random_problem
from vpng import ELBO, Dense, LeastSquares, Parameters, Predictive, Variational, precondition
from vpng.problems import LinearLatent, LogisticRegression, MeanField

NUM_KEYS = 3000


class _Explicit(GlobalProblem):
    """z = mean + scale * whiten(eps), with eps drawn and whitened as the subclass says."""

    def latent(self, variational, noise, batch):
        return variational["bias"] + jnp.exp(variational["log_scale"]) * self.whiten(noise)


class NormalNoise(_Explicit):
    def noise(self, rng_key, batch):
        return jax.random.normal(rng_key, (2,))

    def whiten(self, noise):
        return noise


class RotatedNoise(NormalNoise):
    def whiten(self, noise):
        c, s = np.cos(0.7), np.sin(0.7)
        return jnp.array([[c, -s], [s, c]]) @ noise


class UniformNoise(_Explicit):
    def noise(self, rng_key, batch):
        return jax.random.uniform(rng_key, (2,), minval=1e-7, maxval=1 - 1e-7)

    def whiten(self, noise):
        return jax.scipy.special.ndtri(noise)


@cache
def mean_and_error(cls, seed):
    kind = "local" if cls.local else "global"
    _, parameters, batch = random_problem(kind, "bernoulli", seed=3)
    problem = cls(num_data=3, family="bernoulli")

    def one(key):
        metric = Predictive(num_particles=2)
        return metric.operator(problem, parameters, batch, key).to_dense()

    run = jax.jit(lambda key: jax.lax.map(one, jax.random.split(key, NUM_KEYS)))
    values = np.asarray(run(jax.random.key(seed)))
    return values.mean(axis=0), values.std(axis=0) / np.sqrt(NUM_KEYS)


@pytest.mark.parametrize("other", [RotatedNoise, UniformNoise])
def test_predictive_fisher_does_not_see_how_noise_is_drawn(other):
    first, first_error = mean_and_error(NormalNoise, 0)
    second, second_error = mean_and_error(other, 1)
    error = np.hypot(first_error, second_error)
    size = np.linalg.norm(first, 2)
    assert (np.abs(first - second) <= 5 * error + 1e-7).all()
    assert 5 * error.max() < 0.1 * size


class Rescaled(LocalProblem):
    """The same q by another formula: noise of standard deviation 3."""

    def noise(self, rng_key, batch):
        return 3.0 * jax.random.normal(rng_key, (batch["inputs"].shape[0], 2))

    def latent(self, variational, noise, batch):
        mean = batch["inputs"] @ variational["weights"] + variational["bias"]
        return mean + jnp.exp(variational["log_scale"]) * noise / 3.0


def test_local_noise_may_be_rescaled():
    first, first_error = mean_and_error(LocalProblem, 0)
    second, second_error = mean_and_error(Rescaled, 1)
    assert (np.abs(first - second) <= 5 * np.hypot(first_error, second_error) + 1e-7).all()


class AffineLogistic(LogisticRegression):
    """Logistic regression in coordinates lambda' with (loc, log_scale) = A lambda' + b."""

    matrix: jax.Array | None = None
    shift: jax.Array | None = None

    def _old(self, variational):
        flat = self.matrix @ variational + self.shift
        size = flat.shape[0] // 2
        return MeanField(flat[:size], flat[size:])

    def approximation(self, variational, batch):
        return super().approximation(self._old(variational), batch)

    def latent(self, variational, noise, batch):
        return super().latent(self._old(variational), noise, batch)


@eqx.filter_jit
def direction(problem, parameters, batch, key, curvature, metric=Predictive()):
    """(F + 0 I)^-1 g with the loss's gradient, by the public transformation."""
    transformation = precondition(problem, metric, curvature=curvature, damping=0.0)
    _, gradient = ELBO().estimate_and_gradient(key, problem, parameters, batch)
    state = transformation.init(parameters)
    return transformation.update(gradient, state, parameters, batch=batch, rng_key=key)[0]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("metric", "curvature"),
    [(Predictive(), Dense()), (Predictive(), LeastSquares()), (Variational(), Dense())],
    ids=["F_r, dense", "F_r, least squares", "F_q, dense"],
)
@given(seed=st.integers(0, 1000))
def test_direction_is_covariant_under_affine_changes_of_parameters(metric, curvature, seed):
    """lambda = A lambda' + b with the damping at zero: direction = A direction'."""
    generator = np.random.default_rng(seed)
    covariates, labels = generator.normal(size=(20, 2)), generator.integers(0, 2, 20)
    problem, batch = LogisticRegression.create(covariates, labels, intercept=False)
    change = generator.normal(size=(4, 4)) + 3.0 * np.eye(4)
    shift = generator.normal(size=4)
    old = generator.normal(size=4) * 0.5
    new = np.linalg.solve(change, old - shift)
    affine = AffineLogistic(num_data=20, matrix=jax.device_put(change), shift=jax.device_put(shift))
    key = jax.random.key(seed)
    here = Parameters(MeanField(old[:2], old[2:]))
    first = direction(problem, here, batch, key, curvature, metric)
    second = direction(affine, Parameters(new), batch, key, curvature, metric)
    wanted = np.concatenate([first.variational.loc, first.variational.log_scale])
    np.testing.assert_allclose(change @ second.variational, wanted, rtol=1e-6, atol=1e-8)


class Stretched(LinearLatent):
    """lambda = 2 lambda' - 1 and theta = theta' / 5 + 3, together."""

    def approximation(self, variational, batch):
        return super().approximation(2 * variational - 1, batch)

    def latent(self, variational, noise, batch):
        return super().latent(2 * variational - 1, noise, batch)

    def likelihood(self, model, latent, batch):
        return super().likelihood(model / 5 + 3, latent, batch)


@pytest.mark.usefixtures("x64")
def test_direction_is_covariant_for_model_parameters_too():
    data = np.array([0.5, -1.0, 2.0, 0.1])
    key = jax.random.key(0)
    old = Parameters(np.asarray(0.7), np.asarray(0.4))
    new = Parameters((old.variational + 1) / 2, (old.model - 3) * 5)
    first = direction(LinearLatent(num_data=4), old, data, key, Dense())
    second = direction(Stretched(num_data=4), new, data, key, Dense())
    first, second = jax.tree.map(np.asarray, (first, second))
    np.testing.assert_allclose(2 * second.variational, first.variational, rtol=1e-9)
    np.testing.assert_allclose(second.model / 5, first.model, rtol=1e-9)
    assert abs(float(second.variational) - float(first.variational)) > 1e-3
