"""Attempts in turn until one is finite, and what the first two of them do to a matrix."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.numerics.repairs import ROUNDING, first_finite, raised, without_negative
from vpng.numerics.trust_region import AFTER_REJECTION


def climb(values, *, good=None, start=jnp.nan):
    tree = lambda value: {"a": jnp.asarray(value, jnp.float32), "b": jnp.ones(2)}
    attempt = lambda count: tree(jnp.asarray(values)[count])
    found, good, count = jax.jit(
        lambda: first_finite(tree(start), attempt, len(values), good=good)
    )()
    return float(found["a"]), bool(good), int(count)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_first_finite_attempt_is_the_last(place):
    values = [jnp.inf] * place + [float(number) for number in range(3 - place)]
    assert climb(values) == (0.0, True, place + 1)


def test_nothing_is_tried_where_nothing_is_wrong():
    assert climb([1.0, 2.0], start=5.0) == (5.0, True, 0)
    assert climb([1.0, 2.0], start=5.0, good=False) == (1.0, True, 1)


def test_all_may_fail():
    found, good, count = climb([jnp.nan, jnp.inf])
    assert (found, good, count) == (np.inf, False, 2)


def test_lanes_stop_at_attempts_of_their_own():
    values = jnp.array([[1.0, 2.0], [jnp.nan, 3.0], [jnp.nan, jnp.nan]])
    lane = lambda row: first_finite(jnp.nan * row[0], lambda count: row[count], 2)
    found, good, counts = jax.vmap(lane)(values)
    np.testing.assert_array_equal(found, [1.0, 3.0, np.nan])
    assert good.tolist() == [True, True, False]
    assert counts.tolist() == [1, 2, 2]


def test_more_damping_covers_what_rounding_took():
    """Rank one in single precision: with no damping at all the factorisation fails, or is lucky."""
    column = np.random.default_rng(0).normal(size=(40, 1)).astype(np.float32)
    matrix = jnp.asarray(column @ column.T)
    more = raised(0.0, jnp.trace(matrix), matrix.dtype)
    assert jnp.isfinite(jnp.linalg.cholesky(matrix + more * jnp.eye(40))).all()
    assert float(raised(2.0, jnp.zeros(()), matrix.dtype)) == 2.0 * AFTER_REJECTION
    assert float(more) == pytest.approx(ROUNDING * 2.0**-23 * float(jnp.trace(matrix)))


@pytest.mark.usefixtures("x64")
def test_the_nearest_semidefinite_matrix():
    """Higham: of all those the one that takes negative eigenvalues as zero is nearest."""
    generator = np.random.default_rng(1)
    matrix = generator.normal(size=(6, 6))
    matrix = matrix + matrix.T
    found = np.asarray(without_negative(jnp.asarray(matrix)))
    least = np.linalg.eigvalsh(found)[0]
    assert least > -1e-12
    distance = np.linalg.norm(found - matrix)
    for _ in range(20):
        factor = generator.normal(size=(6, 6))
        other = found + 0.01 * factor @ factor.T
        assert np.linalg.norm(other - matrix) > distance
    np.testing.assert_allclose(found @ (found - matrix), np.zeros((6, 6)), atol=1e-12)
