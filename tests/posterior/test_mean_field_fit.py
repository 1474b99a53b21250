"""Newton's method finds the optimum of the ELBO under fixed draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.posterior.fixed_draws import fixed_draws
from vpng.posterior.frame import Full, unit_frame
from vpng.posterior.mean_field import MeanField, fit, negative_elbo


def run(density, size, start):
    draws = jnp.asarray(fixed_draws(size, 0))
    frame = unit_frame(size, full=True)
    found = jax.jit(lambda s: fit(density, frame, draws, len(draws), s))(start)
    return draws.reshape(-1, size), frame, found


def skewed(z):
    """Exponentials of latents in units that differ by a thousand."""
    return jnp.sum(z / jnp.asarray([1.0, 1e-3]) - jnp.exp(z / jnp.asarray([1.0, 1e-3])))


def test_the_gradient_vanishes_where_it_ends():
    with jax.enable_x64(True):
        draws, frame, found = run(skewed, 2, MeanField(jnp.zeros(2), jnp.full(2, -8.0)))
        assert found.converged
        local = lambda move: negative_elbo(skewed, frame, draws, found.point.moved(move))
        np.testing.assert_allclose(jax.grad(local)(jnp.zeros(4)), 0.0, atol=1e-6)


def test_the_best_normal_for_a_log_gamma_is_found():
    # E[z - exp z] + log s is largest where E exp z = 1 and s E[eps exp z] = 1, the averages being
    # those over the draws; under all draws that is m = -1/2, s = 1.
    with jax.enable_x64(True):
        draws, _, found = run(
            lambda z: jnp.sum(z - jnp.exp(z)), 1, MeanField(jnp.zeros(1), jnp.zeros(1))
        )
        heights = np.exp(np.asarray(found.point.at(draws)))
        assert np.mean(heights) == pytest.approx(1.0, rel=1e-6)
        scale = np.exp(found.point.log_scale[0])
        assert scale * np.mean(draws * heights) == pytest.approx(1.0, rel=1e-6)
        assert float(found.point.loc[0]) == pytest.approx(-0.5, abs=0.05)


def test_far_starts_arrive_and_the_loss_falls():
    _, _, found = run(skewed, 2, MeanField(jnp.full(2, -3.0), jnp.full(2, -8.0)))
    assert found.converged
    path = np.asarray(found.path)[: int(found.steps)]
    assert np.all(np.diff(path) < 1e-3)
    assert path[0] - path[-1] > 100


def test_a_frame_turns_and_turns_back():
    with jax.enable_x64(True):
        root = np.linalg.cholesky(np.array([[2.0, 0.5], [0.5, 1.0]]))
        frame = Full(jnp.asarray([1.0, -1.0]), jnp.asarray(root))
        u = np.random.default_rng(0).normal(size=(6, 2))
        np.testing.assert_allclose(frame.coordinates(np.asarray(frame(jnp.asarray(u)))), u)
        from scipy.stats import multivariate_normal

        z = np.asarray(frame(jnp.asarray(u)))
        expected = multivariate_normal([1.0, -1.0], frame.covariance()).logpdf(z)
        np.testing.assert_allclose(frame.log_prob(z), expected)
