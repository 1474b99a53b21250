"""The toy's closed forms: the optimum, the ELBO, and where the three directions point."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vpng import Dense, scale_by_natural_gradient, scale_by_vpng
from vpng.problems import GaussianMean

pytestmark = pytest.mark.usefixtures("x64")


def toy(epsilon=0.01, num_data=50):
    covariance = np.array([[1.0, 1.0 - epsilon], [1.0 - epsilon, 1.0]])
    generator = np.random.default_rng(0)
    data = generator.multivariate_normal([3.0, 1.0], covariance, size=num_data)
    return GaussianMean.create(covariance, num_data), jnp.asarray(data), covariance


def test_optimum_is_the_posterior_mean():
    """By the other formula, mu' = Sigma' Sigma^-1 sum x with Sigma' = (n Sigma^-1 + I)^-1."""
    problem, data, covariance = toy()
    precision = np.linalg.inv(covariance)
    wanted = np.linalg.solve(50 * precision + np.eye(2), precision @ np.sum(data, axis=0))
    np.testing.assert_allclose(problem.optimum(data), wanted, rtol=1e-8)


def test_elbo_is_largest_at_the_optimum_with_the_papers_gradient():
    problem, data, covariance = toy()
    gradient = jax.jit(jax.grad(problem.elbo))
    np.testing.assert_allclose(gradient(problem.optimum(data), data), 0.0, atol=1e-6)
    here = jnp.array([0.5, -1.0])
    wanted = -here + np.linalg.solve(covariance, np.sum(data - here, axis=0))
    np.testing.assert_allclose(gradient(here, data), wanted, rtol=1e-9)
    hessian = jax.jit(jax.hessian(problem.elbo))(here, data)
    np.testing.assert_allclose(hessian, -np.eye(2) - 50 * np.linalg.inv(covariance), rtol=1e-9)


def test_only_vpng_points_at_the_optimum():
    """The exact gradient of the ELBO at the start, through the three preconditioners."""
    problem, data, _ = toy()
    parameters = problem.init()
    towards = np.asarray(problem.optimum(data) - parameters.variational)
    gradient = parameters._replace(
        variational=-jax.grad(problem.elbo)(parameters.variational, data) / 50
    )

    def angle(transformation):
        transformation = optax.with_extra_args_support(transformation)

        @jax.jit
        def update(gradient):
            state = transformation.init(parameters)
            key = jax.random.key(0)
            return transformation.update(gradient, state, parameters, batch=data, rng_key=key)[0]

        updates = update(gradient)
        step = -np.asarray(updates.variational)
        cosine = step @ towards / np.linalg.norm(step) / np.linalg.norm(towards)
        return np.degrees(np.arccos(np.clip(cosine, -1, 1)))

    assert angle(scale_by_vpng(problem, curvature=Dense(), damping=1e-6)) < 5.0
    assert angle(scale_by_natural_gradient(problem, curvature=Dense(), damping=0.0)) > 30.0
    assert angle(optax.identity()) > 30.0
