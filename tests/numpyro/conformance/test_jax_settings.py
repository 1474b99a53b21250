"""Kinds of keys, and settings of JAX that people debug with."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import Trace_ELBO, autoguide
from programs import Y, shapes
from small_models import normal_mean

MAKERS = {
    "AutoNormal": autoguide.AutoNormal,
    "AutoMultivariateNormal": autoguide.AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": autoguide.AutoLowRankMultivariateNormal,
}
SETTINGS = {
    "no promotion of ranks": lambda: jax.numpy_rank_promotion("raise"),
    "NaN is an error": lambda: jax.debug_nans(True),
    "no leaks": lambda: jax.checking_leaks(),
    "double precision": lambda: jax.enable_x64(True),
}


def steps(make, key, settings, guide=autoguide.AutoNormal, num=2):
    with settings():
        svi = make(normal_mean, guide(normal_mean), Trace_ELBO(num_particles=2))
        state, update = svi.init(key, Y), jax.jit(svi.update)
        for _ in range(num):
            state, loss = update(state, Y)
        return svi.get_params(state), loss, svi.evaluate(state, Y)


# Looking for leaks takes a minute: garbage is collected after every trace.
DEAR = [pytest.param(n, marks=pytest.mark.exhaustive) if n == "no leaks" else n for n in SETTINGS]


@pytest.mark.parametrize("name", DEAR)
def test_steps_under_settings_of_jax(make_ours_usual, name):
    params, loss, evaluated = steps(make_ours_usual, jax.random.key(0), SETTINGS[name])
    kind = jnp.float64 if name == "double precision" else jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves((params, loss))} == {jnp.dtype(kind)}
    assert np.isfinite(loss)
    assert np.isfinite(evaluated)


@pytest.mark.exhaustive
@pytest.mark.parametrize("guide", MAKERS)
@pytest.mark.parametrize("name", SETTINGS)
def test_guides_under_settings_of_jax(make_svi, name, guide):
    assert np.isfinite(steps(make_svi, jax.random.key(0), SETTINGS[name], MAKERS[guide], 5)[1])


def test_legacy_keys_draw_what_typed_ones_do(make_usual):
    """A key of raw numbers stays one, and the steps are the same."""
    typed = steps(make_usual, jax.random.key(7), nullcontext)
    legacy = steps(make_usual, jax.random.PRNGKey(7), nullcontext)
    jax.tree.map(np.testing.assert_array_equal, typed, legacy)


def test_the_state_keeps_the_kind_of_the_key(make_usual):
    svi = make_usual(normal_mean, autoguide.AutoNormal(normal_mean), Trace_ELBO())
    for key in (jax.random.key(1), jax.random.PRNGKey(1), jax.random.key(1, impl="rbg")):
        state = svi.init(key, Y)
        assert state.rng_key.dtype == key.dtype
        assert shapes(jax.eval_shape(svi.update, state, Y)[0]) == shapes(state)
