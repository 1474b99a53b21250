"""Derivatives of functions with and without a forward mode are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.numerics.derivatives import jacobian, linearised


@jax.custom_vjp
def in_reverse_alone(x):
    return jnp.sin(x)


in_reverse_alone.defvjp(lambda x: (jnp.sin(x), x), lambda x, cotangent: (cotangent * jnp.cos(x),))
POINT = np.array([0.3, -1.2, 2.0], np.float32)
MATRIX = np.array([[1.0, 2.0, 0.5], [0.0, -1.0, 3.0]], np.float32)
EXPECTED = MATRIX * np.cos(POINT)
"""Of the map x -> A sin(x)."""


@pytest.mark.parametrize("sine", [jnp.sin, in_reverse_alone])
def test_the_jacobian_is_the_closed_form(sine):
    found = jacobian(lambda x: MATRIX @ sine(x), jnp.asarray(POINT))
    np.testing.assert_allclose(found, EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("sine", [jnp.sin, in_reverse_alone])
def test_both_linear_maps_are_the_closed_form(sine):
    point = {"first": jnp.asarray(POINT[:1]), "rest": jnp.asarray(POINT[1:])}
    whole = lambda tree: jnp.concatenate([tree["first"], tree["rest"]])
    push, pull = linearised(lambda tree: (MATRIX @ sine(whole(tree)))[:, None], point)
    pushed = push({"first": jnp.ones(1), "rest": 2 * jnp.ones(2)})
    np.testing.assert_allclose(pushed, EXPECTED @ np.array([[1.0], [2.0], [2.0]]), rtol=1e-6)
    pulled = pull(jnp.array([[1.0], [-1.0]]))
    assert jax.tree.structure(pulled) == jax.tree.structure(point)
    np.testing.assert_allclose(whole(pulled), np.array([1.0, -1.0]) @ EXPECTED, rtol=1e-6)


def test_it_is_found_inside_of_loops_and_compiled_functions():
    step = jax.jit(lambda carry, _: (in_reverse_alone(carry), None))
    twice = lambda x: jax.lax.scan(step, x, length=2)[0]
    push, pull = linearised(twice, jnp.asarray(POINT))
    expected = np.cos(np.sin(POINT)) * np.cos(POINT)
    np.testing.assert_allclose(jax.jit(push)(jnp.ones(3)), expected, rtol=1e-6)
    np.testing.assert_allclose(pull(jnp.ones(3)), expected, rtol=1e-6)


@pytest.mark.parametrize("take", [jacobian, linearised])
def test_other_errors_are_not_caught(take):
    with pytest.raises(TypeError, match="not like this"):
        take(lambda x: (_ for _ in ()).throw(TypeError("not like this")), jnp.ones(2))
