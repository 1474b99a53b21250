"""The methods and arguments of `numpyro.infer.SVI`, `SVIState` and `SVIRunResult`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.example_libraries import optimizers
from numpyro import infer
from numpyro.infer import Trace_ELBO
from numpyro.infer.svi import SVIRunResult, SVIState
from programs import KEY, Y, shapes
from small_models import normal_guide, normal_mean

from vpng.numpyro import SVI


@pytest.fixture
def svi(make_svi):
    return make_svi(normal_mean, normal_guide, Trace_ELBO(num_particles=2))


def test_run_returns_params_state_and_all_losses(svi, capsys):
    result = svi.run(KEY, 4, Y)
    assert isinstance(result, SVIRunResult)
    params, state, losses = result
    assert result._fields == ("params", "state", "losses")
    assert isinstance(state, SVIState)
    assert state._fields == ("optim_state", "mutable_state", "rng_key")
    assert losses.shape == (4,)
    jax.tree.map(np.testing.assert_array_equal, params, svi.get_params(state))
    assert "4/4" in capsys.readouterr().err
    # A run goes on from a state, of this object or in another that was initialised like it.
    again = svi.run(jax.random.key(1), 2, Y, init_state=state, progress_bar=False)
    assert again.losses.shape == (2,)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("num_steps", [0, -1])
def test_a_run_has_at_least_one_step(svi, num_steps):
    with pytest.raises(ValueError, match="num_steps"):
        svi.run(KEY, num_steps, Y)


def test_init_params_replace_values_of_the_program(svi):
    start = {"location": jnp.array(0.7), "scale": jnp.array(0.2)}
    params = svi.get_params(svi.init(KEY, Y, init_params=start))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), params, start)


def test_a_param_may_be_a_function_of_a_key(make_svi):
    def guide(y):
        location = numpyro.param("location", lambda key: jax.random.normal(key, ()) + 5.0)
        numpyro.sample("mean", dist.Normal(location, 0.3))

    svi = make_svi(normal_mean, guide, Trace_ELBO())
    at = lambda seed: svi.get_params(svi.init(jax.random.key(seed), Y))["location"]
    assert at(0) == at(0) != at(1)


def test_arguments_vary_and_static_ones_do_not(make_svi):
    def model(y, *, shift, kind):
        assert kind == "normal"
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean + shift, 1.0), obs=y)

    guide = lambda y, *, shift, kind: normal_guide(y)
    svi = make_svi(model, guide, Trace_ELBO(), kind="normal")
    state = svi.init(KEY, Y, shift=0.0)
    update = lambda shift, y: svi.update(state, y, shift=shift)
    assert shapes(jax.eval_shape(update, 1.0, Y)[0]) == shapes(state)
    # Another length of the data too: the state does not depend on it.
    assert shapes(jax.eval_shape(update, 1.0, Y[:3])[0]) == shapes(state)
    at = lambda shift: svi.evaluate(state, Y, shift=shift)
    assert at(0.0) != at(2.0)


def test_stable_update_keeps_the_state_if_the_loss_is_not_finite(make_usual):
    svi = make_usual(normal_mean, normal_guide, Trace_ELBO(num_particles=2))
    state, update = svi.init(KEY, Y), jax.jit(svi.stable_update)
    with numpyro.validation_enabled(False):
        after, loss = update(state, np.full_like(Y, np.nan))
    assert not np.isfinite(loss)
    jax.tree.map(np.testing.assert_array_equal, svi.get_params(after), svi.get_params(state))
    for _ in range(2):
        after, loss = update(after, Y)
    assert np.isfinite(loss)
    assert svi.get_params(after)["location"] != svi.get_params(state)["location"]


def test_loops_of_unknown_length_are_differentiated_forwards(make_usual):
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        halved = jax.lax.while_loop(lambda z: jnp.abs(z) > 0.5, lambda z: 0.5 * z, mean)
        numpyro.sample("y", dist.Normal(halved, 1.0), obs=y)

    svi = make_usual(model, normal_guide, Trace_ELBO(num_particles=2))
    result = svi.run(KEY, 2, Y, forward_mode_differentiation=True, progress_bar=False)
    assert np.all(np.isfinite(result.losses))


def test_the_loop_of_numpyros_examples(make_usual):
    """Init, a jitted body with batches drawn inside, `fori_loop`, evaluate, get_params."""
    svi = make_usual(normal_mean, normal_guide, Trace_ELBO())
    state, traces = svi.init(KEY, Y[:2]), []

    @jax.jit
    def epoch(state, rng_key):
        traces.append(rng_key)
        order = jax.random.permutation(rng_key, len(Y))

        def body(i, carry):
            total, state = carry
            batch = jax.lax.dynamic_slice_in_dim(jnp.asarray(Y)[order], 2 * i, 2)
            state, loss = svi.update(state, batch)
            return total + loss, state

        return jax.lax.fori_loop(0, 2, body, (0.0, state))

    for number in range(2):
        total, state = epoch(state, jax.random.fold_in(KEY, number))
        assert np.isfinite(total)
    assert len(traces) == 1
    assert np.isfinite(jax.jit(svi.evaluate)(state, Y))
    assert svi.get_params(state)["scale"] > 0


@pytest.mark.parametrize("of", [infer.SVI, SVI])
def test_run_takes_the_update_of_a_subclass(of):
    class Noting(of):
        def update(self, svi_state, *args, **kwargs):
            noted.append(args)
            return super().update(svi_state, *args, **kwargs)

    noted = []
    svi = Noting(normal_mean, normal_guide, numpyro.optim.Adam(0.05), Trace_ELBO())
    jax.eval_shape(lambda key: svi.run(key, 3, Y, progress_bar=False).losses, KEY)
    assert noted


def test_states_are_trees_for_scan_and_vmap(svi):
    keys = jax.random.split(KEY, 2)
    states = jax.vmap(lambda key: svi.init(key, Y))(keys)
    step = lambda state, _: svi.update(state, Y)
    many = jax.vmap(lambda state: jax.lax.scan(step, state, length=2))
    assert jax.eval_shape(many, states)[1].shape == (2, 2)


def test_the_attributes_of_the_object(svi):
    assert svi.model is normal_mean
    assert svi.guide is normal_guide
    assert isinstance(svi.loss, Trace_ELBO)
    assert svi.static_kwargs == {}
    state = svi.init(KEY, Y)
    raw = svi.optim.get_params(state.optim_state)
    jax.tree.map(np.testing.assert_allclose, svi.constrain_fn(raw), svi.get_params(state))


OPTIMIZERS = {
    "optax": lambda: optax.chain(optax.clip(10.0), optax.adam(0.05)),
    "optax schedule": lambda: optax.adam(optax.cosine_decay_schedule(0.05, 100)),
    "optax MultiSteps": lambda: optax.MultiSteps(
        optax.adam(0.05), every_k_schedule=2
    ).gradient_transformation(),
    "optax inject": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.05),
    "optax plateau": lambda: optax.chain(optax.adam(0.05), optax.contrib.reduce_on_plateau()),
    "JAX": lambda: optimizers.adam(0.05),
    "Momentum": lambda: numpyro.optim.Momentum(0.05, 0.5),
    **{
        name: partial(getattr(numpyro.optim, name), 0.05)
        for name in numpyro.optim.__all__
        if name not in {"Minimize", "Momentum"}
    },
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("of", [infer.SVI, SVI])
def test_every_optimizer_is_taken(name, of):
    optim = OPTIMIZERS[name]()
    svi = of(normal_mean, normal_guide, optim, Trace_ELBO())
    state = svi.init(KEY, Y)
    after, _ = jax.eval_shape(svi.update, state, Y)
    assert shapes(svi.get_params(state)) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), jax.eval_shape(svi.get_params, after)
    )
