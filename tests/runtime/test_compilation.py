"""Which programs are compiled quickly: counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vpng.runtime.compilation import KEEP, QUICK, compiler_options, operations


def count(function, *shapes):
    return operations(jax.make_jaxpr(function)(*map(jnp.zeros, shapes)))


def test_elementwise_and_sums_count_what_they_touch():
    assert count(jnp.sin, (3, 4)) == 12
    assert count(lambda x: jnp.sum(x, axis=1), (3, 4)) == 12


def test_products_count_their_terms():
    assert count(lambda a, b: a @ b, (2, 3), (3, 5)) == 2 * 3 * 5


def test_a_loop_counts_as_often_as_it_runs():
    step = lambda carry, _: (jnp.sin(carry), None)
    assert count(lambda x: jax.lax.scan(step, x, length=7)[0], (5,)) == 35
    # Of a number that is not known it counts once, as a step of a run does.
    once = lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: jnp.sin(y), x)
    assert 5 <= operations(jax.make_jaxpr(once)(jnp.zeros(5), 3)) < 10


def test_of_branches_the_longest_counts():
    branches = (lambda x: x, lambda x: jnp.sin(jnp.sin(x)))
    several = lambda x, i: jax.lax.switch(i, branches, x)
    found = operations(jax.make_jaxpr(several)(jnp.zeros(100), 0))
    assert 200 <= found < 210


def test_equations_cost_something_however_small_they_are():
    loop = jax.make_jaxpr(lambda x: jax.lax.scan(lambda x, _: (jnp.sin(x), None), x, length=5))(0.0)
    assert operations(loop, started=100) == operations(loop) + 5 * 100


def test_convolutions_count_their_terms():
    convolve = lambda x, k: jax.lax.conv(x, k, (1, 1), "VALID")
    assert count(convolve, (1, 2, 6, 6), (3, 2, 3, 3)) == 3 * 4 * 4 * (2 * 3 * 3)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="options of XLA for CPUs")
def test_little_is_compiled_quickly_and_much_is_not(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    program = lambda size: jax.make_jaxpr(lambda x: x @ x)(jnp.zeros((size, size)))
    assert compiler_options(program(10)) == QUICK
    assert compiler_options(program(300)) == {}
    assert compiler_options(program(300), num_steps=1) == QUICK
    assert compiler_options(program(10), num_steps=100_000_000) == {}
    monkeypatch.setenv(KEEP, "1")
    assert compiler_options(program(10)) == {}
    monkeypatch.delenv(KEEP)
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=2")
    assert compiler_options(program(10)) == {}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="options of XLA for CPUs")
def test_the_compiler_knows_the_options():
    traced = jax.jit(lambda x: jnp.linalg.cholesky(x) @ x).trace(jnp.eye(4))
    quick = traced.lower().compile(compiler_options=compiler_options(traced.jaxpr))
    matrix = jnp.diag(jnp.arange(1.0, 5.0))
    np.testing.assert_allclose(quick(matrix), np.diag(np.arange(1.0, 5.0) ** 1.5), rtol=1e-6)
