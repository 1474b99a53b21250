"""Section 3.2: a matrix that is not positive semidefinite, and F_r of the same model, which is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import Parameters, Predictive
from vpng.problems import LinearLatent
from vpng.problems.linear_latent import (
    draw_joint,
    substituted_hessian,
    substituted_hessian_closed_form,
)

pytestmark = pytest.mark.usefixtures("x64")


closed_form_of = jax.jit(substituted_hessian_closed_form)


@jax.jit
def by_draws_and_closed_form(lam, theta):
    joint = draw_joint(jax.random.key(0), theta, 100_000)
    problem = LinearLatent(num_data=1, scale=0.7)
    by_draws = substituted_hessian(problem, Parameters(lam, theta), joint)
    return by_draws, substituted_hessian_closed_form(theta)


@pytest.mark.parametrize("theta", [0.2, 0.5, 1.3])
@pytest.mark.parametrize("lam", [0.0, 0.8])
def test_monte_carlo_gives_the_papers_matrix(theta, lam):
    """And lambda does not enter, as the footnote says.

    100,000 draws: the largest entry's terms have a standard deviation below 30 (products of four
    Gaussian variables of scale at most 1.7), so 5 standard errors are below 0.5; for theta < 1 far
    less.
    """
    actual, closed_form = by_draws_and_closed_form(lam, theta)
    wanted = [[theta**2 * (theta**2 + 1), theta**2 - 1], [theta**2 - 1, 1.0]]
    np.testing.assert_allclose(closed_form, wanted)
    np.testing.assert_allclose(actual, wanted, atol=0.05 if theta < 1 else 0.2)


@pytest.mark.parametrize(
    ("theta", "definite"), [(0.3, False), (0.57, False), (0.58, True), (2.0, True)]
)
def test_it_is_indefinite_below_one_over_root_three(theta, definite):
    smallest = np.linalg.eigvalsh(closed_form_of(theta)).min()
    assert (smallest >= 0) == definite


@jax.jit
def predictive_fisher(theta):
    data = np.array([0.5, -1.0, 2.0])
    parameters = Parameters(jnp.asarray(0.4), theta)
    problem = LinearLatent(num_data=3)
    return Predictive().operator(problem, parameters, data, jax.random.key(0)).to_dense()


@pytest.mark.parametrize("theta", [0.0, 0.2, 0.5, 2.0])
def test_the_predictive_fisher_of_the_same_model_is_semidefinite(theta):
    assert np.linalg.eigvalsh(predictive_fisher(theta)).min() >= -1e-14


def test_draws_come_from_the_joint():
    """Var z = 1, Var x = theta^2 + 1, Cov = theta; 5 standard errors of 100,000 draws."""
    joint = jax.jit(lambda theta: draw_joint(jax.random.key(1), theta, 100_000))(0.8)
    moments = np.cov(joint.latent, joint.observed)
    np.testing.assert_allclose(moments, [[1.0, 0.8], [0.8, 1.64]], atol=5 * 1.64 * np.sqrt(2 / 1e5))
