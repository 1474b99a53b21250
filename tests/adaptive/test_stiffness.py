"""Weights of networks move in their own units where the metric does not see them."""

from collections import OrderedDict

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng import FisherOperator, Parameters
from vpng.adaptive import AveragedDense, Linearised, Stiffness
from vpng.curvature import Dense

pytestmark = pytest.mark.usefixtures("x64")

WEIGHTS = Stiffness(frozenset({"flow$params"}), 0.25)
ROWS = np.array([[1.0, 2.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 3.0, 0.0]])
GRADIENT = np.array([0.5, -1.0, 2.0, 0.3, 1.0])


def parameters(flat, *, loc="loc"):
    variational = {"flow$params": [(flat[:2], flat[2:3])], loc: flat[3:4]}
    return Parameters(variational, {"theta": flat[4:]})


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def solved(geometry, point, damping):
    @jax.jit
    def solve(gradient):
        flatten = lambda p: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(p)])
        metric = lambda: FisherOperator(point, lambda p: ROWS @ flatten(p))
        state = geometry.init(point)
        return (
            geometry.prepare(state, metric, point, damping, jnp.ones(()), None)
            .solve(gradient)
            .direction
        )

    return solve


def test_only_weights_are_stiff():
    point = parameters(np.zeros(5))
    np.testing.assert_array_equal(WEIGHTS.diagonal(point), [0.25, 0.25, 0.25, 0.0, 0.0])
    unnamed = Parameters(np.zeros(3))
    assert not np.any(WEIGHTS.diagonal(unnamed))
    ordered = Parameters(OrderedDict([("flow$params", np.zeros(2)), ("a", np.zeros(1))]))
    np.testing.assert_array_equal(WEIGHTS.diagonal(ordered), [0.25, 0.25, 0.0])


def test_a_weight_that_the_metric_does_not_see_moves_by_gradient_over_stiffness():
    point = parameters(np.zeros(5))
    damping = 1e-9
    found = flat(solved(AveragedDense(WEIGHTS), point, damping)(parameters(GRADIENT)))
    matrix = ROWS.T @ ROWS + np.diag([0.25, 0.25, 0.25, 0.0, 0.0])
    damped = matrix + damping * np.diag(np.diag(matrix))
    np.testing.assert_allclose(found, np.linalg.solve(damped, GRADIENT), rtol=1e-6)
    assert found[2] == pytest.approx(2.0 / 0.25)


def test_weights_among_many_parameters_are_stiff_too():
    """In coordinates with a diagonal of ones, found by probes: the state tells what they found."""
    point, damping = parameters(np.zeros(5)), 1e-3
    geometry = Linearised(Dense(), WEIGHTS)

    @jax.jit
    def both(gradient):
        flatten = lambda p: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(p)])
        metric = lambda: FisherOperator(point, lambda p: ROWS @ flatten(p))
        prepared = geometry.prepare(
            geometry.init(point), metric, point, damping, jnp.ones(()), None
        )
        return prepared.solve(gradient).direction, prepared.state.diagonal

    found, diagonal = both(parameters(GRADIENT))
    assert diagonal[2] == 0.0  # no row sees it
    stiff = np.array([0.25, 0.25, 0.25, 0.0, 0.0])
    floor = np.maximum(diagonal, 1e-8 * diagonal.max())
    unseen = np.where(diagonal == 0.0, 1.0, 0.0)
    matrix = ROWS.T @ ROWS + np.diag(damping * floor + stiff + unseen)
    np.testing.assert_allclose(flat(found), np.linalg.solve(matrix, GRADIENT), rtol=1e-8)


def test_probes_find_the_diagonal():
    """E (R^T v)^2 = diag(F): over 380 steps of 4 probes to 1 in 39, of which 0.2 is seven times."""
    point = parameters(np.zeros(5))
    geometry = Linearised(Dense())

    def step(state, _):
        flatten = lambda p: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(p)])
        metric = lambda: FisherOperator(point, lambda p: ROWS @ flatten(p))
        state = geometry.prepare(state, metric, point, 1e-3, jnp.ones(()), None).state
        return state, state.diagonal

    _, path = jax.jit(lambda: jax.lax.scan(step, geometry.init(point), length=400))()
    mean = np.mean(np.asarray(path)[20:], axis=0)
    np.testing.assert_allclose(mean, np.diag(ROWS.T @ ROWS), rtol=0.2)
