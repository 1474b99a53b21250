"""Factors that cannot be inverted: more damping, then clipped eigenvalues, then the old inverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.kronecker.factor_statistics import Factors, Statistics
from vpng.kronecker.repair import factor_findings, inverted_or_repaired
from vpng.numerics.trees import all_finite


def made(matrix) -> Statistics:
    layers = {"w": Factors(jnp.asarray(matrix, jnp.float32), jnp.ones(3))}
    return Statistics(layers, (), jnp.zeros((0, 0)), {})


def cholesky_inverse(statistics, damping):
    matrix = statistics.layers["w"].inputs + damping * jnp.eye(2)
    lower = jnp.linalg.cholesky(matrix)
    return jax.scipy.linalg.cho_solve((lower, True), jnp.eye(2))


@pytest.mark.parametrize(
    ("eigenvalues", "repairs", "added"),
    [
        ((2.0, 1.0), 0, 1e-3),  # nothing to repair
        ((2.0, -3e-3), 1, 5e-3),  # five times the damping makes it definite
        ((2.0, -1.0), 2, 5e-3),  # only clipping does
    ],
)
def test_repairs(eigenvalues, repairs, added):
    angle = np.array([[0.6, -0.8], [0.8, 0.6]])
    matrix = angle * np.array(eigenvalues) @ angle.T
    inverse, new, count = jax.jit(
        lambda s: inverted_or_repaired(cholesky_inverse, s, jnp.float32(1e-3), jnp.zeros((2, 2)))
    )(made(matrix))
    assert bool(new)
    assert int(count) == repairs
    kept = np.array(eigenvalues) if repairs < 2 else np.maximum(eigenvalues, 0.0)
    wanted = angle / (kept + added) @ angle.T
    np.testing.assert_allclose(inverse, wanted, rtol=2e-3)


def test_the_old_inverse_is_kept_if_nothing_works():
    old = jnp.full((2, 2), 7.0)
    broken = made([[jnp.nan, 0.0], [0.0, 1.0]])
    inverse, new, count = inverted_or_repaired(cholesky_inverse, broken, jnp.float32(1e-3), old)
    assert not bool(new)
    assert int(count) == 2
    np.testing.assert_array_equal(inverse, old)
    assert not bool(all_finite(cholesky_inverse(broken, 1e-3)))


def test_factors_are_named():
    assert factor_findings(made(jnp.eye(2))).named() == []
    broken = made(jnp.eye(2))._replace(diagonal={"table": jnp.full(2, jnp.inf)})
    assert factor_findings(broken).named() == ["Fisher diagonal of table"]
    broken = made(jnp.full((2, 2), jnp.nan))
    assert factor_findings(broken).named() == ["Fisher factor A of w"]
