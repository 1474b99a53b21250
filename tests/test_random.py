"""Threefry without a loop gives JAX's own bits."""

import jax
import numpy as np
import pytest

from vpng.random import with_loop, written_out

KEY = jax.random.key(5)


def same(function):
    both = jax.jit(lambda key: (function(written_out(key)), function(key)))
    np.testing.assert_array_equal(*both(KEY))


@pytest.mark.parametrize("shape", [(7,), (2, 5)])
def test_splits(shape):
    same(lambda key: jax.random.key_data(jax.random.split(key, shape)))


def test_folds():
    same(lambda key: jax.random.key_data(jax.random.fold_in(key, 7)))


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_bits(x64, width):
    same(lambda key: jax.random.bits(key, (3, 5), f"uint{width}"))


@pytest.mark.parametrize("draw", [jax.random.normal, jax.random.uniform, jax.random.exponential])
def test_draws_one_by_one(draw):
    same(lambda key: jax.vmap(lambda one: draw(one, (3,)))(jax.random.split(key, 4)))


def test_raw_keys_are_taken_and_keys_of_other_generators_left():
    assert written_out(jax.random.PRNGKey(5)) == written_out(KEY)
    other = jax.random.key(0, impl="rbg")
    assert written_out(other) is other


def test_a_key_can_be_turned_back_for_samplers_that_know_jaxs_own_alone():
    assert with_loop(written_out(KEY)) == KEY
    draws = jax.jit(lambda key: jax.random.poisson(with_loop(written_out(key)), 3.0, (4,)))(KEY)
    np.testing.assert_array_equal(draws, jax.random.poisson(KEY, 3.0, (4,)))
    for other in (KEY, jax.random.PRNGKey(5), jax.random.key(0, impl="rbg")):
        assert with_loop(other) is other
