"""The triangular constraint by gathers is NumPyro's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import constraints
from numpyro.distributions.transforms import (
    LowerCholeskyTransform,
    ScaledUnitLowerCholeskyTransform,
    biject_to,
)

from vpng.numpyro.triangular import GatheredLowerCholesky, gathered

THEIRS = ScaledUnitLowerCholeskyTransform()


@pytest.mark.parametrize("shape", [(1,), (3,), (15,), (2, 10)])
def test_values_and_derivatives_are_those_of_numpyro(shape, x64):
    ours = GatheredLowerCholesky()
    x, direction = np.random.default_rng(0).normal(size=(2, *shape))

    @jax.jit
    def by_both(x, direction):
        y, moved = jax.jvp(ours, (x,), (direction,))
        weights = np.random.default_rng(1).normal(size=y.shape)
        pull = lambda transform: jax.grad(lambda x: jnp.sum(weights * transform(x)))(x)
        back = lambda transform: jax.grad(lambda y: jnp.sum(jnp.sin(transform.inv(y))))(y)
        found = y, moved, pull(ours), back(ours)
        wanted = *jax.jvp(THEIRS, (x,), (direction,)), pull(THEIRS), back(THEIRS)
        return found, wanted, ours.inv(y)

    found, wanted, again = by_both(x, direction)
    for ours_here, theirs_here in zip(found[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(ours_here, theirs_here, rtol=1e-14)
    np.testing.assert_allclose(found[3], wanted[3], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(again, x, rtol=1e-12, atol=1e-14)


def test_large_and_tiny_scales_survive_single_precision():
    x = np.array([0.3, -80.0, 1e4], np.float32)
    transform = GatheredLowerCholesky()
    ours, theirs = jax.jit(lambda x: (transform(x), THEIRS(x)))(x)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(jax.jit(lambda y: transform.inv(y))(ours), x, rtol=1e-6)


def test_it_takes_the_place_of_that_one_transform_alone():
    assert type(gathered(biject_to(constraints.scaled_unit_lower_cholesky))) is (
        GatheredLowerCholesky
    )
    other = biject_to(constraints.lower_cholesky)
    assert type(other) is LowerCholeskyTransform
    assert gathered(other) is other
