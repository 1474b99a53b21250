"""Locations, scales and a factor of low rank, against the matrices that they stand for.

The log density is quadratic, -z A z / 2 + b z over n data: the curvature per datum is A / n, and
what G predicts of the draws is all the noise of a gradient.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to

from vpng import FisherOperator, Parameters
from vpng.adaptive import Eliminated, LowRank, Particles, PerCoordinate
from vpng.structure import dense

pytestmark = pytest.mark.usefixtures("x64")

NUM_DATA = 7
RNG = np.random.default_rng(3)
ROOT = RNG.normal(size=(4, 3))
A = ROOT.T @ ROOT + 0.1 * np.eye(3)
SLOPE = np.array([0.3, -1.0, 2.0])
MEAN = np.array([0.1, -0.2, 0.3])
SCALE = np.array([0.3, 0.5, 1.4])
COLUMNS = np.array([[0.4, -0.3], [1.0, 0.2], [0.0, 0.8]])
SPREAD = {"factorised": np.eye(3), "low rank": np.eye(3) + COLUMNS @ COLUMNS.T}
DAMPING = 1e-3


def geometry_and_point(kind):
    transform = biject_to(constraints.positive)
    parts = (("m",), ("s",), (transform,), PerCoordinate(NUM_DATA))
    variational = {"m": jnp.asarray(MEAN), "s": jnp.log(SCALE)}
    if kind == "factorised":
        return Eliminated(*parts, structure=dense(3)), Parameters(variational)
    params = Parameters({**variational, "w": jnp.asarray(COLUMNS)})
    return LowRank(*parts, structure=dense(3), columns="w"), params


def expected_gradient(kind):
    """Of -ELBO / n, in the location, the logarithm of the scale and W."""
    diagonal = np.diag(SCALE)
    moved = A @ diagonal @ SPREAD[kind]
    found = {"m": A @ MEAN - SLOPE, "s": SCALE * np.diag(moved) - 1.0}
    if kind == "low rank":
        gram = np.eye(2) + COLUMNS.T @ COLUMNS
        found["w"] = diagonal @ A @ diagonal @ COLUMNS - COLUMNS @ np.linalg.inv(gram)
    return {name: value / NUM_DATA for name, value in found.items()}


class Quadratic:
    """The objective, with four draws in each half."""

    def __init__(self, kind):
        root = np.linalg.cholesky(np.diag(SCALE) @ SPREAD[kind] @ np.diag(SCALE))
        away = RNG.normal(size=(8, 3)) @ root.T
        gradients = ((MEAN + away) @ A - SLOPE) / NUM_DATA
        scores = np.linalg.solve(root @ root.T, away.T).T
        in_centre = lambda array: ((), (jnp.asarray(array),))
        self.particles = Particles(jnp.zeros(8), in_centre(gradients), in_centre(scores))

    def by_particle(self, active, embed):
        return self.particles


def with_metric(geometry, params):
    """The state after a step that formed G, and what it can be solved with."""
    rows = lambda p: jnp.linalg.cholesky(jnp.asarray(A / NUM_DATA)).T @ p.variational["m"]
    return geometry.prepare(
        geometry.init(params),
        lambda: FisherOperator(params, rows),
        params,
        jnp.asarray(DAMPING),
        jnp.ones(()),
        None,
    )


@pytest.mark.parametrize("kind", SPREAD)
def test_what_the_curvature_predicts_is_all_the_noise_of_a_quadratic(kind):
    geometry, params = geometry_and_point(kind)
    state = jax.jit(lambda params: with_metric(geometry, params).state)(params)
    found = geometry.evaluate(Quadratic(kind), params, state)
    for name, wanted in expected_gradient(kind).items():
        gradients, predicted = (each.variational[name] for each in (found.gradients, found.scores))
        assert np.max(np.abs(gradients - wanted)) > 1e-2
        for half in (0, 1):
            np.testing.assert_allclose(gradients[half] - predicted[half], wanted, atol=1e-10)


def test_a_factor_of_zero_is_left_at_once():
    geometry, params = geometry_and_point("low rank")
    zero = params._replace(variational={**params.variational, "w": jnp.zeros((3, 2))})
    found = geometry.evaluate(Quadratic("factorised"), zero, geometry.init(zero))
    assert np.all(np.abs(found.gradients.variational["w"]) > 0)


def test_solves_and_squares_are_those_of_the_blocks():
    geometry, params = geometry_and_point("low rank")
    gradient = jax.tree.map(lambda leaf: jnp.asarray(RNG.normal(size=leaf.shape)), params)

    @jax.jit
    def solved(params, gradient):
        prepared = with_metric(geometry, params)
        found = prepared.solve(gradient, gradient)
        return found.direction, found.products, prepared.square(gradient)

    direction, products, square = solved(params, gradient)
    metric = A / NUM_DATA
    damped = metric + DAMPING * np.diag(np.diag(metric))
    given = {name: np.asarray(leaf) for name, leaf in gradient.variational.items()}
    # The parameter of a scale is its logarithm.
    spread = np.diag(metric) * np.sum(COLUMNS**2, axis=1) + np.diag(metric)
    of_scale = SCALE**2 * spread + 1.0 / NUM_DATA
    both = np.diag(SCALE) @ metric @ np.diag(SCALE)
    wanted = {
        "m": np.linalg.solve(damped, given["m"]),
        "s": given["s"] / of_scale,
        "w": np.linalg.solve(np.diag(SCALE) @ damped @ np.diag(SCALE), given["w"]),
    }
    for place, (name, value) in enumerate(wanted.items()):
        np.testing.assert_allclose(direction.variational[name], value, rtol=1e-9)
        np.testing.assert_allclose(products[place, 0, 1], np.sum(value * given[name]), rtol=1e-9)
    total = given["m"] @ metric @ given["m"] + np.sum(of_scale * given["s"] ** 2)
    total += np.sum(given["w"] * (both @ given["w"]))
    np.testing.assert_allclose(square, total, rtol=1e-9)
