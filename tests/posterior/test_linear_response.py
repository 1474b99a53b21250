"""Linear response is the covariance of the posterior: closed forms and finite differences."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.posterior import programs
from vpng.posterior.fixed_draws import fixed_draws
from vpng.posterior.frame import unit_frame
from vpng.posterior.linear_response import curvature, delta_method, response, response_along
from vpng.posterior.mean_field import MeanField, negative_elbo


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def normal(rng, size, condition):
    """The log density of a normal distribution, its mean and its covariance."""
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    precision = basis * np.geomspace(1, condition, size) @ basis.T
    mean = rng.normal(size=size)
    return Normal(jnp.asarray(mean), jnp.asarray(precision)), mean, np.linalg.inv(precision)


class Tilted(eqx.Module):
    """A posterior that is not normal, four labels and three weights, times exp(tilt'w)."""

    tilt: jax.Array

    def __call__(self, weights):
        logits = jnp.asarray(COVARIATES) @ weights
        return jnp.sum(jax.nn.log_sigmoid(logits)) - 0.5 * weights @ weights + self.tilt @ weights


COVARIATES = np.random.default_rng(3).normal(size=(4, 3))


class Normal(eqx.Module):
    mean: jax.Array
    precision: jax.Array

    def __call__(self, z):
        return -0.5 * (z - self.mean) @ self.precision @ (z - self.mean)


def fitted(density, size):
    draws = jnp.asarray(fixed_draws(size, 0, pairs=64))
    start = MeanField(jnp.zeros(size), jnp.full(size, -1.0))
    frame = unit_frame(size, full=True)
    all_of_them = jnp.asarray(len(draws))
    found = programs.run(programs.fit, density, frame, draws, all_of_them, start, batch=16)
    return frame, draws, found


def answered(density, size):
    frame, draws, found = fitted(density, size)
    all_of_them = jnp.asarray(len(draws))
    blocks = programs.run(
        programs.curvature, density, frame, draws, all_of_them, found.point, batch=1
    )
    return frame, draws, found, response(blocks, found.point)


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e6])
def test_the_covariance_of_a_normal_posterior_is_exact_under_mean_field(condition):
    density, mean, covariance = normal(np.random.default_rng(0), 5, condition)
    _, _, found, answer = answered(density, 5)
    assert found.converged
    np.testing.assert_allclose(found.point.loc, mean, atol=1e-5)
    assert answer.exact
    np.testing.assert_allclose(answer.covariance, covariance, rtol=1e-6, atol=1e-6)
    # The approximation's own are the conditional ones, which are far too small.
    own = np.exp(2 * found.point.log_scale)
    np.testing.assert_allclose(own, 1 / np.diag(np.linalg.inv(covariance)), rtol=1e-5)


def test_it_is_exact_away_from_the_optimum_of_a_normal_posterior():
    density, _, covariance = normal(np.random.default_rng(1), 5, 100.0)
    frame, draws, _ = fitted(density, 5)
    point = MeanField(jnp.arange(5.0), jnp.linspace(-2, 0.5, 5))
    loc = curvature(density, frame, draws, len(draws), point).loc
    np.testing.assert_allclose(np.linalg.inv(loc), covariance, rtol=1e-6)


def test_it_is_how_the_mean_answers_to_a_tilt():
    *_, answer = answered(Tilted(jnp.zeros(3)), 3)
    step = 1e-3
    for place in range(3):
        tilt = step * jnp.eye(3)[place]
        ends = [fitted(Tilted(sign * tilt), 3)[2].point.loc for sign in (1, -1)]
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(answer.covariance[place], slope, rtol=1e-5, atol=1e-7)


def test_products_give_the_same_rows():
    density = Tilted(jnp.zeros(3))
    frame, draws, found, answer = answered(density, 3)
    rows = response_along(density, frame, draws, found.point, jnp.eye(3), rtol=1e-12)
    np.testing.assert_allclose(rows, answer.covariance, rtol=1e-8)


def test_the_curvature_is_the_hessian_of_the_negative_elbo():
    density = Tilted(jnp.zeros(3))
    frame, draws, _ = fitted(density, 3)
    point = MeanField(jnp.asarray([0.3, -0.2, 0.1]), jnp.asarray([-1.0, -0.5, 0.2]))
    whole = jax.hessian(lambda p: negative_elbo(density, frame, draws.reshape(-1, 3), p))(point)
    found = curvature(density, frame, draws, len(draws), point)
    np.testing.assert_allclose(found.loc, whole.loc.loc, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.cross, whole.loc.log_scale, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found.log_scale, whole.log_scale.log_scale, rtol=1e-8, atol=1e-12)


def test_a_hessian_that_is_not_definite_is_said_to_be_so():
    saddle = lambda z: 0.5 * z[0] ** 2 - 0.5 * z[1] ** 2
    frame, draws = unit_frame(2, full=True), jnp.asarray(fixed_draws(2, 0))
    point = MeanField(jnp.zeros(2), jnp.zeros(2))
    answer = response(curvature(saddle, frame, draws, len(draws), point), point)
    assert not answer.exact
    assert np.all(np.linalg.eigvalsh(answer.covariance) > 0)


def test_the_delta_method_is_exact_for_linear_functions():
    covariance = np.diag([1.0, 4.0])
    found = delta_method(
        lambda z: jnp.stack([z.sum(), z[0]]), jnp.ones(2), lambda s: s @ covariance
    )
    np.testing.assert_allclose(found, [[5.0, 1.0], [1.0, 1.0]])


@pytest.mark.parametrize(("size", "pairs"), [(3, 32), (40, 16)])
def test_fixed_draws_have_exact_moments(size, pairs):
    draws = fixed_draws(size, 0, pairs=pairs).reshape(-1, size)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=1e-12)
    second = draws.T @ draws / len(draws)
    np.testing.assert_allclose(np.diag(second), 1.0, rtol=1e-10)
    if pairs > size:
        np.testing.assert_allclose(second, np.eye(size), atol=1e-10)
