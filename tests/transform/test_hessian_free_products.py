"""Hessian- and Gauss-Newton-vector products, and the conjugate gradients on top of them."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from problems_for_tests import GlobalProblem, random_problem
from vpng import ELBO, GaussNewton, Hessian, InputError, ScoreFunction, scale_by_hessian_free
from vpng.transform.hessian_free import truncated_conjugate_gradient

pytestmark = pytest.mark.usefixtures("x64")

OBJECTIVE = ELBO(2)


def dense(product, problem, parameters, batch, key, objective=OBJECTIVE):
    apply = product.linearise(problem, objective, parameters, batch, key, jnp.asarray(0))
    flat, unravel = ravel_pytree(parameters)
    return jax.vmap(lambda e: ravel_pytree(apply(unravel(e)))[0])(jnp.eye(flat.size))


@pytest.mark.parametrize(("kind", "family"), [("local", "normal"), ("global", "bernoulli")])
def test_hessian_products(kind, family):
    problem, parameters, batch = random_problem(kind, family, seed=1)
    key = jax.random.key(0)

    @jax.jit
    def both(parameters):
        flat, unravel = ravel_pytree(parameters)
        loss = lambda v: OBJECTIVE.estimate(key, problem, unravel(v), batch).loss
        return jax.hessian(loss)(flat), dense(Hessian(), problem, parameters, batch, key)

    wanted, actual = both(parameters)
    np.testing.assert_allclose(actual, wanted, rtol=1e-8, atol=1e-10)
    assert np.linalg.eigvalsh(wanted).min() < 0  # indefinite here: why Gauss-Newton is the default


@pytest.mark.parametrize("kind", ["local", "global"])
def test_gauss_newton_products(kind):
    """J^T H J written out: Bernoulli logits have H = p (1 - p), a Gaussian q has

    KL'' = diag(1, 1 + 1 / s^2) in (mean, scale).
    """
    problem, parameters, batch = random_problem(kind, "bernoulli", seed=1, num_total=6)
    key = jax.random.key(0)

    @jax.jit
    def both(parameters):
        flat, unravel = ravel_pytree(parameters)
        noise = [problem.noise(k, batch) for k in jax.random.split(key, 2)]

        def logits(vector):
            eta = unravel(vector)
            each = [problem.latent(eta.variational, eps, batch) for eps in noise]
            return jnp.stack(
                [problem.likelihood(eta.model, z, batch).base_dist.logits for z in each]
            )

        def gaussian(vector):
            q = problem.approximation(unravel(vector).variational, batch).base_dist
            return jnp.stack([jnp.broadcast_to(v, q.batch_shape) for v in (q.loc, q.scale)])

        p = jax.nn.sigmoid(logits(flat))
        jacobian = jax.jacfwd(logits)(flat)
        wanted = jnp.einsum("...p,...,...q->pq", jacobian, p * (1 - p), jacobian) / (2 * 3)
        scale = gaussian(flat)[1]
        curve = jnp.stack([jnp.ones_like(scale), 1 + 1 / scale**2])
        jacobian = jax.jacfwd(gaussian)(flat)
        weight = 1 / 3 if kind == "local" else 1 / 6
        wanted += weight * jnp.einsum("...p,...,...q->pq", jacobian, curve, jacobian)
        return wanted, dense(GaussNewton(), problem, parameters, batch, key)

    wanted, actual = both(parameters)
    np.testing.assert_allclose(actual, wanted, rtol=1e-8, atol=1e-11)
    assert np.linalg.eigvalsh(actual).min() > -1e-10


class HeavyPrior(GlobalProblem):
    """A prior for which NumPyro knows no KL to a Normal."""

    def prior(self, model, batch):
        return dist.StudentT(3.0, jnp.zeros(2), 1.0).to_event(1)


def test_gauss_newton_of_a_kl_that_is_sampled():
    """Its mean over keys has the Hessian in (mean, scale) of the KL by Gauss-Hermite quadrature.

    5 standard errors of the mean over 500 keys of 10 draws each, which must be small beside the
    Hessian: a draw that stood still while q moves would give about minus F_q in its place.
    """
    _, parameters, batch = random_problem("global", "normal", seed=3)
    problem = HeavyPrior(num_data=3, family="normal")
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)

    def divergence(moments):
        z = moments[0] + moments[1] * nodes[:, None]
        log_p = dist.StudentT(3.0, 0.0, 1.0).log_prob(z)
        return -jnp.sum(jnp.log(moments[1])) - weights @ jnp.sum(log_p, axis=1) / np.sqrt(2 * np.pi)

    @jax.jit
    def both(parameters):
        def one(key):
            blocks = [
                dense(GaussNewton(), problem, parameters, batch, key, ELBO(10, kl_weight=beta))
                for beta in (1.0, 0.0)
            ]
            return (blocks[0] - blocks[1])[:4, :4]

        q = problem.approximation(parameters.variational, batch).base_dist
        slopes = jnp.concatenate([jnp.ones(2), q.scale])  # the scale is by its logarithm
        hessian = jax.hessian(divergence)(jnp.stack([q.loc, q.scale])).reshape(4, 4)
        wanted = slopes[:, None] * hessian * slopes / 3
        return jax.lax.map(one, jax.random.split(jax.random.key(0), 500)), wanted

    drawn, wanted = map(np.asarray, both(parameters))
    error = drawn.std(axis=0) / np.sqrt(500)
    assert (np.abs(drawn.mean(axis=0) - wanted) <= 5 * error + 1e-12).all()
    assert 5 * error.max() < 0.05 * np.abs(wanted).max()


@partial(jax.jit, static_argnames=("max_steps", "rtol"))
def solved(matrix, gradient, *, max_steps, rtol=1e-10):
    return truncated_conjugate_gradient(
        lambda v: matrix @ v, gradient, max_steps=max_steps, rtol=rtol
    )


@given(seed=st.integers(0, 1000), size=st.sampled_from([3, 8]))
def test_truncated_conjugate_gradient_solves_definite_systems(seed, size):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(size, size))
    matrix, gradient = root @ root.T + np.eye(size), generator.normal(size=size)
    solution, count, converged = solved(matrix, gradient, max_steps=4 * size)
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, gradient), rtol=1e-6, atol=1e-8)
    assert bool(converged)
    assert int(count) <= 4 * size


def test_it_stops_at_the_limit():
    matrix = np.diag(np.geomspace(1e-4, 1e4, 20))
    _, count, converged = solved(matrix, np.ones(20), max_steps=3)
    assert int(count) == 3
    assert not bool(converged)


@given(seed=st.integers(0, 1000))
def test_negative_curvature_still_gives_a_descent_direction(seed):
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(6, 6))
    matrix, gradient = root + root.T, generator.normal(size=6)  # indefinite almost surely
    direction, _, _ = solved(matrix, gradient, max_steps=50)
    assert np.asarray(direction) @ gradient > 0


def test_a_first_direction_that_curves_down_returns_the_gradient():
    gradient = np.array([1.0, 2.0])
    direction, count, converged = solved(-np.eye(2), gradient, max_steps=5, rtol=1e-3)
    np.testing.assert_array_equal(direction, gradient)
    assert int(count) == 1
    assert not bool(converged)


def test_stops_before_the_negative_direction_and_keeps_what_it_has():
    matrix = np.diag([4.0, 1.0, -2.0])
    gradient = np.array([1.0, 1.0, 0.1])
    direction, count, _ = solved(matrix, gradient, max_steps=10)
    direction = np.asarray(direction)
    assert 1 < int(count) <= 3
    assert gradient @ direction > 0
    model = lambda u: 0.5 * u @ matrix @ u - gradient @ u
    assert model(direction) < 0


def test_products_that_are_not_numbers_are_not_hidden():
    for gradient, factor in ((np.ones(3), np.nan), (np.array([1.0, np.nan, 0.0]), 1.0)):
        direction, _, converged = solved(factor * np.eye(3), gradient, max_steps=5, rtol=1e-3)
        assert not np.isfinite(np.asarray(direction)).all()
        assert not bool(converged)


def test_score_function_objectives_are_refused():
    problem, _, _ = random_problem("local", "normal", seed=0)
    with pytest.raises(InputError, match=r"objective.gradient: expected Reparameterised\(\)"):
        scale_by_hessian_free(problem, objective=ELBO(2, gradient=ScoreFunction()))
