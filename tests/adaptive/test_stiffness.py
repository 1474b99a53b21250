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
    assert WEIGHTS.of_all(unnamed) == WEIGHTS.of_all(Parameters({}, {})) == 0.0
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


@pytest.mark.parametrize("all_weights", [True, False])
def test_many_parameters_are_stiff_if_all_of_them_are_weights(all_weights):
    names = {"flow$params", "other$params", "theta"} if all_weights else {"flow$params"}
    geometry = Linearised(Dense(), Stiffness(frozenset(names), 0.25))
    point = parameters(np.zeros(5), loc="other$params")
    found = flat(solved(geometry, point, 1e-3)(parameters(GRADIENT, loc="other$params")))
    # The damping relative to the metric is one of those that signs v can give, v.F v / 5 of it.
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 5)).reshape(5, -1)
    relative = 1e-3 * np.unique(np.sum((ROWS @ signs) ** 2, axis=0)) / 5
    candidates = [
        np.linalg.solve(ROWS.T @ ROWS + (mu + 0.25 * all_weights) * np.eye(5), GRADIENT)
        for mu in relative
    ]
    assert min(np.abs(found - wanted).max() for wanted in candidates) < 1e-6
