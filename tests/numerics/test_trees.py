"""Trees as vectors, against NumPy on the flat entries."""

import jax.numpy as jnp
import numpy as np
import pytest

from vpng.numerics import trees

LEFT = {"a": jnp.array([1.0, 2.0]), "b": (jnp.array([[3.0]]),)}
RIGHT = {"a": jnp.array([4.0, -5.0]), "b": (jnp.array([[6.0]]),)}


def test_inner_and_size():
    assert float(trees.inner(LEFT, RIGHT)) == np.dot([1, 2, 3], [4, -5, 6])
    assert float(trees.inner({}, {})) == 0.0
    assert trees.size(LEFT) == 3


@pytest.mark.parametrize(("condition", "wanted"), [(True, LEFT), (False, RIGHT)])
def test_where(condition, wanted):
    chosen = trees.where(jnp.asarray(condition), LEFT, RIGHT)
    np.testing.assert_array_equal(chosen["a"], wanted["a"])
    np.testing.assert_array_equal(chosen["b"][0], wanted["b"][0])


@pytest.mark.parametrize(("value", "finite"), [(1.0, True), (np.nan, False), (-np.inf, False)])
def test_all_finite(value, finite):
    assert bool(trees.all_finite({"a": jnp.ones(2), "b": jnp.array([value])})) is finite
    assert bool(trees.all_finite(trees.zeros_like(LEFT)))
