"""The metric of m + S eps from that of m, against the matrix it stands for."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to

from vpng import FisherOperator, Parameters
from vpng.adaptive import Cholesky, Evaluation, LocationScale, Particles, PerCoordinate
from vpng.adaptive.geometry import WeightedNoise

pytestmark = pytest.mark.usefixtures("x64")

NUM_DATA = 7
DIMENSION = 3
CURVATURE = np.array(
    [
        [2.0, 0.3, 0.2, 0.1],
        [0.3, 3.0, 1.2, -0.4],
        [0.2, 1.2, 2.5, 0.6],
        [0.1, -0.4, 0.6, 1.5],
    ]
)
"""Of one model parameter and three latents."""


def starting(transform, scale):
    raw = jax.jit(lambda scale: transform.inv(scale))(scale)
    return Parameters({"m": np.array([0.1, -0.2, 0.3]), "s": raw}, {"theta": np.array(0.7)})


def diagonal():
    transform = biject_to(constraints.softplus_positive)
    params = starting(transform, np.array([0.3, 0.5, 1.4]))
    return LocationScale(("m",), ("s",), (transform,), PerCoordinate(NUM_DATA)), params


def triangular():
    transform = biject_to(constraints.scaled_unit_lower_cholesky)
    params = starting(transform, np.array([[0.5, 0.0, 0.0], [0.2, 0.4, 0.0], [-0.3, 0.1, 0.8]]))
    return LocationScale(("m",), ("s",), (transform,), Cholesky(NUM_DATA)), params


def latent(geometry, params, noise):
    scale = geometry.transforms[0](params.variational["s"])
    spread = scale * noise if scale.ndim == 1 else scale @ noise
    return jnp.concatenate([params.model["theta"][None], params.variational["m"] + spread])


def operator(geometry, params, noise):
    root = jnp.linalg.cholesky(jnp.asarray(CURVATURE))
    return FisherOperator(params, lambda p: root.T @ latent(geometry, p, noise))


def brute_force(geometry, params, curvature=CURVATURE):
    """E over eps of J^T G J by the 2d points of +-sqrt(d) e_i, exact for an affine J."""
    noises = np.sqrt(DIMENSION) * np.concatenate([np.eye(DIMENSION), -np.eye(DIMENSION)])

    @jax.jit
    def jacobians(params):
        flat, unravel = ravel_pytree(params)
        latents = jax.vmap(lambda v, noise: latent(geometry, unravel(v), noise), (None, 0))

        def log_diagonal(vector):
            scale = geometry.transforms[0](unravel(vector).variational["s"])
            return jnp.log(scale if scale.ndim == 1 else jnp.diagonal(scale))

        return jax.jacfwd(latents)(flat, noises), jax.jacfwd(log_diagonal)(flat)

    moved, rows = map(np.asarray, jacobians(params))
    total = np.einsum("kai,ab,kbj->ij", moved, curvature, moved) / len(noises)
    return total + rows.T @ rows / NUM_DATA


def gradient_like(params):
    generator = np.random.default_rng(0)
    return generator.normal(size=sum(np.size(leaf) for leaf in jax.tree.leaves(params)))


@pytest.mark.parametrize("make", [diagonal, triangular])
def test_solve_and_square_are_those_of_the_expected_matrix(make):
    geometry, params = make()
    expected = brute_force(geometry, params)
    gradient = gradient_like(params)

    @jax.jit
    def use(params, gradient):
        here = lambda: operator(geometry, params, jnp.zeros(DIMENSION))
        _, unravel = ravel_pytree(params)
        prepared = geometry.prepare(
            geometry.init(params), here, params, jnp.asarray(0.0), jnp.asarray(1.0), None
        )
        solved, _ = ravel_pytree(prepared.solve(unravel(gradient)).direction)
        return solved, prepared.square(unravel(gradient)), prepared.finite

    solved, square, finite = use(params, gradient)
    np.testing.assert_allclose(solved, np.linalg.solve(expected, gradient), rtol=1e-9)
    np.testing.assert_allclose(square, gradient @ expected @ gradient, rtol=1e-10)
    assert bool(finite)


@pytest.mark.parametrize("make", [diagonal, triangular])
def test_products_are_those_of_the_inverse_block_by_block(make):
    geometry, params = make()
    flat, unravel = ravel_pytree(params)
    gradients = np.random.default_rng(2).normal(size=(3, flat.size))

    @jax.jit
    def products(params, gradients):
        here = lambda: operator(geometry, params, jnp.zeros(DIMENSION))
        prepared = geometry.prepare(
            geometry.init(params), here, params, jnp.asarray(0.0), jnp.asarray(1.0), None
        )
        return prepared.solve(*map(unravel, gradients)).products

    names = jax.tree.map(np.zeros_like, params)
    names.variational["s"] = np.ones_like(names.variational["s"])
    of_scale = np.asarray(ravel_pytree(names)[0], bool)
    inverse = np.linalg.inv(brute_force(geometry, params))
    expected = [
        gradients[:, block] @ inverse[np.ix_(block, block)] @ gradients[:, block].T
        for block in (~of_scale, of_scale)
    ]
    np.testing.assert_allclose(products(params, gradients), expected, rtol=1e-9)


@pytest.mark.parametrize("make", [diagonal, triangular])
def test_loud_directions_are_slowed_down(make):
    """The covariance of the noise counts as curvature where a step goes, not in its length."""
    geometry, params = make()
    geometry = eqx.tree_at(lambda g: g.loudest, geometry, 1e9)
    noises = np.random.default_rng(1).normal(size=(5, 4))
    loud = noises.T @ noises
    gradient = gradient_like(params)

    @jax.jit
    def use(params, gradient, rate, part):
        here = lambda: operator(geometry, params, jnp.zeros(DIMENSION))
        _, unravel = ravel_pytree(params)
        prepared = geometry.prepare(
            geometry.init(params),
            here,
            params,
            jnp.asarray(0.0),
            jnp.asarray(1.0),
            WeightedNoise(jnp.asarray(loud), rate, part),
        )
        solved, _ = ravel_pytree(prepared.solve(unravel(gradient)).direction)
        return solved, prepared.square(unravel(gradient)), prepared.state.noise

    solved, square, kept = use(params, gradient, 0.5, 0.4)
    slowed = brute_force(geometry, params, CURVATURE + 0.2 * loud)
    np.testing.assert_allclose(solved, np.linalg.solve(slowed, gradient), rtol=1e-9)
    np.testing.assert_allclose(
        square, gradient @ brute_force(geometry, params) @ gradient, rtol=1e-10
    )
    np.testing.assert_allclose(kept, 0.5 * loud, rtol=1e-12)


def test_noise_without_end_slows_nothing_down():
    geometry, params = diagonal()
    gradient = jax.tree.map(np.ones_like, params)

    @jax.jit
    def solve(params, level):
        here = lambda: operator(geometry, params, jnp.zeros(DIMENSION))
        zero, one = jnp.asarray(0.0), jnp.asarray(1.0)
        noise = WeightedNoise(level * jnp.eye(4), one, one)
        prepared = geometry.prepare(geometry.init(params), here, params, zero, one, noise)
        return prepared.solve(gradient).direction.variational["m"]

    quiet, some, endless = (solve(params, level) for level in (0.0, 10.0, 1e5))
    np.testing.assert_allclose(endless, quiet, rtol=1e-3)
    assert np.linalg.norm(some) < 0.5 * np.linalg.norm(quiet)


@pytest.mark.parametrize("make", [diagonal, triangular])
def test_a_metric_that_is_not_finite_does_not_enter_the_average(make):
    geometry, params = make()
    before = jax.tree.map(lambda leaf: leaf + jnp.eye(4), geometry.init(params))

    @jax.jit
    def prepare(params):
        broken = FisherOperator(params, lambda p: jnp.nan * latent(geometry, p, jnp.zeros(3)))
        damping, weight = jnp.asarray(1e-3), jnp.asarray(0.5)
        prepared = geometry.prepare(before, lambda: broken, params, damping, weight, None)
        return prepared.state, prepared.finite

    state, finite = prepare(params)
    jax.tree.map(np.testing.assert_array_equal, state, before)
    assert not bool(finite)


class Quadratic(NamedTuple):
    """A quadratic loss per datum, less the entropy, for halves of draws."""

    geometry: LocationScale
    noises: jax.Array
    slope: jax.Array
    curvature: jax.Array

    def loss(self, params, noise):
        z = latent(self.geometry, params, noise)[1:]
        scale = self.geometry.transforms[0](params.variational["s"])
        entropy = jnp.sum(jnp.log(scale if scale.ndim == 1 else jnp.diagonal(scale)))
        return self.slope @ z + 0.5 * z @ self.curvature @ z - entropy / NUM_DATA

    def log_q(self, params, z):
        scale = self.geometry.transforms[0](params.variational["s"])
        residual = z - params.variational["m"]
        if scale.ndim == 1:
            return -0.5 * jnp.sum((residual / scale) ** 2) - jnp.sum(jnp.log(scale))
        whitened = jax.scipy.linalg.solve_triangular(scale, residual, lower=True)
        return -0.5 * jnp.sum(whitened**2) - jnp.sum(jnp.log(jnp.diagonal(scale)))

    def score(self, active, embed, noise):
        z = jax.lax.stop_gradient(latent(self.geometry, embed(active), noise)[1:])
        return jax.grad(lambda active: self.log_q(embed(active), z))(active)

    def at(self, params):
        return jax.vmap(jax.vmap(self.loss, (None, 0)), (None, 0))(params, self.noises).ravel()

    def halves(self, params):
        def half(noises):
            mean = lambda p: jnp.mean(jax.vmap(self.loss, (None, 0))(p, noises))
            scores = jax.vmap(lambda noise: self.score(params, lambda p: p, noise))(noises)
            return jax.grad(mean)(params), jax.tree.map(
                lambda leaf: jnp.mean(leaf, axis=0) / NUM_DATA, scores
            )

        return Evaluation(self.at(params), *jax.vmap(half)(self.noises))

    def by_particle(self, active, embed):
        def one(noise):
            loss = lambda active: self.loss(embed(active), noise)
            return *jax.value_and_grad(loss)(active), self.score(active, embed, noise)

        return Particles(*jax.vmap(one)(self.noises.reshape(-1, DIMENSION)))


def objective(geometry, noises, slope=(1.0, -2.0, 0.5)):
    return Quadratic(geometry, noises, np.asarray(slope), CURVATURE[1:, 1:])


@pytest.mark.parametrize("make", [diagonal, triangular])
def test_derivatives_in_the_location_give_the_whole_gradient(make):
    """With one draw in each half nothing is centred: gradients and scores are autodiff's."""
    geometry, params = make()
    loss = objective(geometry, np.random.default_rng(0).normal(size=(2, 1, DIMENSION)))
    both = jax.jit(lambda params: (geometry.evaluate(loss, params), loss.halves(params)))
    found, expected = jax.tree.map(np.asarray, both(params))
    gradients, _ = found.draws
    of_halves = jax.tree.map(lambda leaf: leaf.mean(axis=0), found.gradients)
    mean = np.append(of_halves.model["theta"], of_halves.variational["m"])
    np.testing.assert_allclose(gradients.mean(axis=0), mean, rtol=1e-12)
    found = found._replace(draws=None)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for mine, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [diagonal, triangular])
def test_centring_leaves_no_noise_from_a_slope(make):
    """A linear loss has no gradient in S but the entropy's, whatever the draws."""
    geometry, params = make()
    noises = np.random.default_rng(0).normal(size=(2, 4, DIMENSION))
    loss = Quadratic(geometry, noises, np.array([100.0, -50.0, 20.0]), np.zeros((3, 3)))

    def entropy(raw):
        scale = geometry.transforms[0](raw)
        return -jnp.sum(jnp.log(scale if scale.ndim == 1 else jnp.diagonal(scale))) / NUM_DATA

    @jax.jit
    def compute(params):
        expected = jax.grad(entropy)(params.variational["s"])
        return geometry.evaluate(loss, params), loss.halves(params), expected

    centred, plain, expected = jax.tree.map(np.asarray, compute(params))
    for half in range(2):
        np.testing.assert_allclose(centred.gradients.variational["s"][half], expected, atol=1e-10)
    np.testing.assert_allclose(
        centred.gradients.variational["m"], plain.gradients.variational["m"], rtol=1e-12
    )


@pytest.mark.parametrize("make", [diagonal, triangular])
def test_centring_is_unbiased(make):
    """Over 10,000 pairs of halves of 3 draws, to four standard errors of each mean."""
    geometry, params = make()

    def one(key):
        loss = objective(geometry, jax.random.normal(key, (2, 3, DIMENSION)))
        mean = lambda e: jnp.mean(e.gradients.variational["s"], axis=0)
        return mean(loss.halves(params)), mean(geometry.evaluate(loss, params))

    @jax.jit
    def run(key):
        return jax.lax.map(one, jax.random.split(key, 10_000), batch_size=500)

    plain, centred = map(np.asarray, run(jax.random.key(1)))
    error = np.sqrt((np.var(plain, axis=0) + np.var(centred, axis=0)) / len(plain))
    assert np.all(np.abs(plain.mean(axis=0) - centred.mean(axis=0)) < 4 * error + 1e-12)


def test_no_step_changes_the_scale_by_more_than_itself():
    geometry, params = triangular()
    huge = jax.tree.map(lambda leaf: np.full_like(leaf, 1e3), params)

    @jax.jit
    def compute(params):
        longest = geometry.longest(huge, params)
        step = longest[1] * huge.variational["s"]
        return longest, *jax.jvp(geometry.transforms[0], (params.variational["s"],), (step,))

    longest, tril, moved = compute(params)
    np.testing.assert_allclose(np.linalg.norm(np.linalg.solve(tril, moved)), 1.0, rtol=1e-10)
    assert np.isinf(longest[0])
