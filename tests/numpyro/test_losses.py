"""How often a loss is evaluated, and how its particles are mapped over."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conjugate_for_tests import data, regression
from numpyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO, autoguide

from vpng.numpyro import SVI, Call
from vpng.numpyro.evaluation import Losses

KEY = jax.random.key(1)


@pytest.fixture(scope="module")
def traced():
    svi = SVI(regression, autoguide.AutoNormal(regression))
    state = svi.init(KEY, *data())
    return svi.problem, state.optim_state.accepted


@pytest.mark.parametrize(
    ("loss", "exact", "in_halves"),
    [
        (Trace_ELBO(), 1, 2),
        (TraceMeanField_ELBO(num_particles=3), 3, 4),
        (RenyiELBO(num_particles=5), 1, 2),
    ],
    ids=["one particle", "three", "no mean over particles"],
)
def test_the_number_of_evaluations_is_exact_but_for_halves(traced, loss, exact, in_halves):
    problem, parameters = traced
    call = Call(data(), {}, {}, {})
    for halves, count in ((False, exact), (True, in_halves)):
        losses = Losses.drawn(KEY, loss, problem, call, halves=halves)
        assert jax.eval_shape(losses.at, parameters).shape == (count,)
        assert jax.eval_shape(losses.mean, parameters)[0].shape == ()


def by_pairs(seen):
    """A map of one's own, which notes how many keys it gets."""

    def mapped(function, keys):
        seen.append(len(keys))
        return jax.lax.map(function, keys, batch_size=2)

    return mapped


@pytest.mark.parametrize(
    ("optim", "count"), [(None, 2), (optax.sgd(0.1), 3)], ids=["automatic", "optimizer"]
)
def test_a_map_of_ones_own_gets_the_keys_of_all_particles(optim, count):
    """Of three, or of two halves of two."""
    seen = []
    loss = Trace_ELBO(num_particles=3, vectorize_particles=by_pairs(seen))
    svi = SVI(regression, autoguide.AutoNormal(regression), optim, loss)
    jax.eval_shape(svi.update, svi.init(KEY, *data()), *data())
    assert set(seen) == {count}


def test_the_map_makes_no_difference(traced, x64):
    problem, parameters = traced
    call = Call(data(), {}, {}, {})

    def evaluated(how):
        loss = Trace_ELBO(num_particles=4, vectorize_particles=how)
        losses = Losses.drawn(KEY, loss, problem, call)
        return jax.jit(lambda at: (losses.at(at), losses.halves(at)))(parameters)

    wanted, found = evaluated(True), evaluated(by_pairs([]))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_one_particle_is_one_draw_of_numpyros_own_loss(traced):
    problem, parameters = traced
    losses = Losses.drawn(KEY, Trace_ELBO(), problem, Call(data(), {}, {}, {}), halves=False)
    mean, gradient = jax.jit(losses.mean)(parameters)
    [key] = jax.random.split(KEY, 1)
    values = problem.constrained(parameters.variational)
    expected = Trace_ELBO().loss(key, values, regression, problem.guide, *data())
    np.testing.assert_allclose(mean, expected / 6, rtol=1e-5)
    assert jnp.all(jnp.isfinite(gradient.variational["w_auto_loc"]))
