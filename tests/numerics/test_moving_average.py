"""Moving averages against the weighted mean written out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.numerics.moving_average import mixed, mixed_if_any

OLD = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(4.0)}
NEW = {"a": jnp.array([3.0, 6.0]), "b": jnp.array(8.0)}


def test_the_weighted_mean():
    found, finite = mixed(OLD, NEW, 0.25)
    np.testing.assert_allclose(found["a"], [1.5, 3.0])
    np.testing.assert_allclose(found["b"], 5.0)
    assert bool(finite)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_does_not_enter_anywhere(bad):
    found, finite = mixed(OLD, NEW | {"b": jnp.array(bad)}, 1.0)
    jax.tree.map(np.testing.assert_array_equal, found, OLD)
    assert not bool(finite)


def test_entries_that_are_not_usable_stay():
    found, finite = mixed(OLD["a"], NEW["a"], 0.5, jnp.array([False, True]))
    np.testing.assert_allclose(found, [1.0, 4.0])
    assert bool(finite)


def test_a_value_of_no_weight_is_not_looked_at():
    broken = lambda: jnp.full(2, jnp.nan)
    found, finite = mixed_if_any(OLD["a"], broken, jnp.array(0.0))
    np.testing.assert_array_equal(found, OLD["a"])
    assert bool(finite)
    found, finite = mixed_if_any(OLD["a"], broken, jnp.array(0.5))
    np.testing.assert_array_equal(found, OLD["a"])
    assert not bool(finite)
