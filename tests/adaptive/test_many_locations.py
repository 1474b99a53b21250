"""Factorised approximations by products, against the matrix they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to

from vpng import Dense, FisherOperator, Parameters
from vpng.adaptive import ManyLocations, PerCoordinate

pytestmark = pytest.mark.usefixtures("x64")

NUM_DATA = 7
SCALE = np.array([0.3, 0.5, 1.4])
ROWS = np.array([[1.0, 0.4, 0.0, 0.2], [0.0, 2.0, 1.0, 0.3], [0.5, 0.0, 0.7, 1.0]])
"""Of one model parameter and three latents."""
DAMPING = 0.01


def prepared(geometry, params, rows):
    def row_function(p):
        return rows @ jnp.append(p.model["theta"], p.variational["m"])

    here = lambda: FisherOperator(params, row_function)
    return geometry.prepare(
        geometry.init(params), here, params, jnp.asarray(DAMPING), jnp.ones(()), None
    )


@pytest.fixture
def case():
    transform = biject_to(constraints.positive)
    raw = np.log(SCALE)
    params = Parameters({"m": np.array([0.1, -0.2, 0.3]), "s": raw}, {"theta": np.array(0.7)})
    geometry = ManyLocations(
        ("m",), ("s",), (transform,), PerCoordinate(NUM_DATA), curvature=Dense()
    )
    generator = np.random.default_rng(1)
    gradients = [
        Parameters(
            {"m": generator.normal(size=3), "s": generator.normal(size=3)},
            {"theta": generator.normal()},
        )
        for _ in range(4)
    ]
    return geometry, params, gradients


@pytest.mark.parametrize("sees_all", [True, False])
def test_directions_products_and_squares(case, sees_all):
    """With the diagonal d that the probes found:

    (R^T R + damping diag d) for the centre, d + 1 / (n s^2) for the scale, whose logarithm is the
    parameter; a latent that no row sees has the Fisher of q in the place of d.
    """
    geometry, params, gradients = case
    rows = ROWS if sees_all else ROWS * np.array([1.0, 1.0, 0.0, 1.0])

    @jax.jit
    def use(gradients):
        found = prepared(geometry, params, rows)
        solved = found.solve(*gradients)
        return solved, found.square(gradients[0]), found.state.diagonal

    solved, square, diagonal = use(gradients)
    information = 1.0 / (NUM_DATA * SCALE**2)
    assert (np.asarray(diagonal) > 0).all() == sees_all
    spare = np.where(diagonal == 0.0, np.append(1.0 / NUM_DATA, information), 0.0)
    floor = np.maximum(diagonal, 1e-8 * np.max(diagonal))
    centre = rows.T @ rows + np.diag(spare)
    damped = centre + np.diag(DAMPING * floor)
    of_scale = (diagonal + spare)[1:] + information
    flat = [np.append(g.model["theta"], g.variational["m"]) for g in gradients]
    raw = [g.variational["s"] / SCALE for g in gradients]  # in the scale itself

    direction = solved.direction
    wanted = np.linalg.solve(damped, flat[0])
    np.testing.assert_allclose(
        np.append(direction.model["theta"], direction.variational["m"]), wanted, rtol=1e-8
    )
    np.testing.assert_allclose(direction.variational["s"], raw[0] / of_scale / SCALE, rtol=1e-8)
    inverse = np.linalg.inv(damped)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        found = np.asarray(solved.products)[:, i, j]
        expected = [flat[i] @ inverse @ flat[j], np.sum(raw[i] * raw[j] / of_scale)]
        np.testing.assert_allclose(found, expected, rtol=1e-8)
    by_diagonal = np.sum(flat[2] * flat[3] / (diagonal + spare))
    np.testing.assert_allclose(solved.products[0, 2, 3], by_diagonal, rtol=1e-8)
    moved = np.append(gradients[0].model["theta"], gradients[0].variational["m"])
    in_scale = gradients[0].variational["s"] * SCALE
    expected = moved @ centre @ moved + np.sum(of_scale * in_scale**2)
    np.testing.assert_allclose(square, expected, rtol=1e-8)


def test_only_vectors_are_carried(case):
    geometry, params, _ = case
    size = ravel_pytree((params.model, params.variational["m"]))[0].size
    shapes = {leaf.shape for leaf in jax.tree.leaves(geometry.init(params))}
    assert shapes == {(size,), ()}
