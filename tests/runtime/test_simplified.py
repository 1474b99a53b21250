"""Programs without copies: fewer equations, the same values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.numerics.derivatives import primitives
from vpng.runtime.programs import compiled_program
from vpng.runtime.simplified import simplified


def names(function, *arguments):
    return list(primitives(simplified(jax.make_jaxpr(function)(*arguments)).jaxpr))


def test_equal_equations_are_computed_once():
    twice = lambda x: jax.jit(jnp.sin)(x) * jax.jit(lambda y: jnp.sin(y))(x)
    assert names(twice, 1.0) == ["sin", "mul"]


def test_what_is_unused_is_left_out():
    def function(x):
        jnp.cos(x)
        return jnp.sin(x)

    assert names(function, 1.0) == ["sin"]


def test_equal_constants_are_one_argument():
    host = lambda: np.arange(3.0, dtype=np.float32)
    closed = jax.make_jaxpr(lambda x: x[jnp.asarray(0)] * jnp.sum(x * host()) + x @ host())(
        jnp.ones(3)
    )
    assert len(closed.consts) == 2
    assert len(simplified(closed).consts) == 1


def test_other_draws_stay_other_draws():
    def function(key):
        one, other = jax.random.split(key)
        again, _ = jax.random.split(key)
        draw = jax.random.normal
        return draw(one), draw(other), draw(again)

    key = jax.random.key(0)
    one, other, again = compiled_program(function, key)(key)
    assert one == again != other
    assert names(function, key).count("erf_inv") == 2


def test_what_stands_in_loops_and_branches_is_simplified_too():
    def function(x):
        body = lambda _, y: jnp.sin(y) + jnp.sin(y)
        x = jax.lax.fori_loop(0, 3, body, x)
        x = jax.lax.scan(lambda y, _: (jnp.cos(y) + jnp.cos(y), None), x, length=2)[0]
        return jax.lax.cond(x > 0, lambda y: jnp.tan(y) * jnp.tan(y), lambda y: y, x)

    found = names(function, 1.0)
    assert [found.count(name) for name in ("sin", "cos", "tan")] == [1, 1, 1]


def test_what_is_kept_apart_stays_apart():
    barrier = jax.lax.optimization_barrier
    assert names(lambda x: barrier(x) + barrier(x), 1.0).count("optimization_barrier") == 2


def test_effects_happen_as_often_as_they_did():
    said = []

    def function(x):
        for _ in range(2):
            jax.debug.callback(lambda value: said.append(float(value)), x)
        return x

    compiled_program(function, jnp.ones(()))(jnp.ones(()))
    jax.effects_barrier()
    assert said == [1.0, 1.0]


@jax.custom_vjp
def halved(x):
    return jnp.sin(x)


halved.defvjp(lambda x: (jnp.sin(x), x), lambda x, slope: (0.5 * slope * jnp.cos(x),))


def mixed(x, key):
    """Most kinds of equations, a second time with the same arguments."""

    def once(x):
        noise = jax.random.gamma(key, 2.0, x.shape)
        matrix = jnp.outer(x, x) + jnp.diag(noise) + jnp.eye(x.size)
        factor = jnp.linalg.cholesky(matrix)
        value = jnp.sum(halved(x)) + jnp.sum(jax.nn.softplus(x)) + jnp.sum(jnp.log(noise))
        solved = jax.scipy.linalg.solve_triangular(factor, x, lower=True)
        return value + jnp.sum(jax.vmap(jnp.sort)(matrix)[:, 0]) + jnp.sum(solved**2)

    return once(x) + jax.value_and_grad(once)(x)[0], jax.grad(once)(x)


@pytest.mark.parametrize("size", [1, 4])
def test_values_are_the_same(size):
    x, key = jnp.linspace(0.5, 1.5, size), jax.random.key(3)
    before = jax.make_jaxpr(mixed)(x, key)
    value, slope = compiled_program(mixed, x, key)(x, key)
    expected, expected_slope = jax.jit(mixed)(x, key)
    np.testing.assert_allclose(value, expected, rtol=2e-6)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-5)
    assert len(list(primitives(simplified(before).jaxpr))) < len(list(primitives(before.jaxpr))) / 2
