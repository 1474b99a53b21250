"""`vpng.numpyro.SVI` in the place of `numpyro.infer.SVI`."""

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from conjugate_for_tests import data, posterior, regression
from jax.example_libraries import optimizers
from numpyro.infer import Predictive as Draws
from numpyro.infer import Trace_ELBO, autoguide, psis_diagnostic
from numpyro.infer.svi import SVIRunResult, SVIState

from vpng import Dense, Parameters, Predictive
from vpng.adaptive import AveragedDense, LocationScale, PerCoordinate
from vpng.errors import InputError
from vpng.numpyro import SVI, Converged
from vpng.numpyro.guides import default_particles

KEY = jax.random.key(3)


@pytest.fixture(scope="module")
def svi():
    return SVI(regression, autoguide.AutoNormal(regression), loss=Trace_ELBO(num_particles=2))


@pytest.fixture(scope="module")
def result(svi):
    return svi.run(KEY, 40, *data(), progress_bar=False)


def test_result_has_numpyros_fields(svi, result):
    assert isinstance(result, SVIRunResult)
    assert result._fields == SVIRunResult._fields
    assert isinstance(result.state, SVIState)
    assert result.losses.shape == (40,)
    assert result.converged is None
    assert set(result.params) == {"w_auto_loc", "w_auto_scale"}
    read = svi.get_params(result.state)
    np.testing.assert_array_equal(read["w_auto_scale"], result.params["w_auto_scale"])


@pytest.mark.parametrize(("num_latents", "count"), [(1, 4), (3, 6), (40, 10)])
def test_two_particles_for_every_latent_from_four_to_ten(num_latents, count):
    geometry = LocationScale(("m",), ("s",), (), PerCoordinate(1))
    parameters = Parameters({"m": np.zeros(num_latents), "s": np.zeros(num_latents)}, {})
    assert default_particles(geometry, parameters) == count
    assert default_particles(AveragedDense(), parameters) == 10


def test_a_loss_of_ones_own_is_kept(svi, result):
    default = SVI(regression, svi.guide)
    default.init(KEY, *data())
    assert default.loss.num_particles == max(4, 2 * result.params["w_auto_loc"].size)
    assert svi.loss.num_particles == 2


def test_evaluate_is_numpyros(svi):
    theirs = numpyro.infer.SVI(regression, svi.guide, numpyro.optim.Adam(0.1), svi.loss)
    expected = jax.jit(theirs.evaluate)(theirs.init(KEY, *data()), *data())
    found = jax.jit(svi.evaluate)(svi.init(KEY, *data()), *data())
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_losses_are_the_summed_negative_elbo_and_what_is_not_finite_is_dropped():
    # A point has a loss without noise, so that the keys do not matter.
    guide = autoguide.AutoDelta(regression)
    wild = SVI(regression, guide, optax.sgd(1e30), Trace_ELBO(), damping=1.0)
    state = wild.init(KEY, *data())
    theirs = numpyro.infer.SVI(regression, guide, optax.sgd(1.0), Trace_ELBO())
    expected = jax.jit(theirs.evaluate)(theirs.init(KEY, *data()), *data())
    step = jax.jit(wild.update)
    state, loss = step(state, *data())
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    kept = wild.get_params(state)["w_auto_loc"]
    # The second loss, at 1e30, is infinite in single precision.
    state, loss = step(state, *data())
    assert not np.isfinite(loss)
    np.testing.assert_array_equal(wild.get_params(state)["w_auto_loc"], kept)
    # A run says so, and ends where the loss was last known to be finite.
    with pytest.warns(RuntimeWarning, match="after 32 steps.*log-prior of 'w'.*learning rate"):
        lost = wild.run(KEY, 40, *data(), progress_bar=False)
    begun = wild.get_params(wild.init(KEY, *data()))["w_auto_loc"]
    np.testing.assert_array_equal(lost.params["w_auto_loc"], begun)
    with pytest.warns(RuntimeWarning, match="21 of 22 steps .* dropped. What is not finite: the"):
        wild.run(KEY, 22, *data(), progress_bar=False)


def test_predictive_psis_and_arviz_take_the_result(svi, result):
    draws = Draws(svi.guide, params=result.params, num_samples=20)(jax.random.key(0), *data())
    assert draws["w"].shape == (20, 2)
    repeated = Draws(regression, posterior_samples={"w": draws["w"]})
    assert repeated(jax.random.key(0), data()[0], None)["y"].shape == (20, 6)
    k_hat = psis_diagnostic(
        jax.random.key(1), result.params, regression, svi.guide, *data(), num_particles=200
    )
    assert np.isfinite(k_hat)
    tree = arviz_base.from_numpyro_svi(svi, svi_result=result, model_args=data())
    found = tree["posterior"]["w"].values.reshape(-1, 2)
    assert len(found) == 1000
    # 1,000 draws: a thirty-second part of a standard deviation, four times over.
    location, scale = result.params["w_auto_loc"], result.params["w_auto_scale"]
    np.testing.assert_allclose((found.mean(axis=0) - location) / scale, 0.0, atol=4 / 1000**0.5)
    # Their variance has a relative error of sqrt(2 / 1000).
    np.testing.assert_allclose(found.var(axis=0) / scale**2, 1.0, atol=4 * (2 / 1000) ** 0.5)
    np.testing.assert_array_equal(tree["observed_data"]["y"].values, data()[1])


def test_state_has_fixed_shapes_and_the_second_update_compiles_nothing(svi):
    traces = []

    @jax.jit
    def step(state, *args):
        traces.append(args)
        return svi.update(state, *args)

    first = svi.init(KEY, *data())
    second, _ = step(first, *data())
    third, _ = step(second, *data())
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    assert shapes(first) == shapes(second) == shapes(third)
    assert len(traces) == 1


def test_init_and_updates_inside_jit_scan_and_vmap(svi, result):
    @jax.jit
    @jax.vmap
    def fit(key):
        state = svi.init(key, *data())
        _, losses = jax.lax.scan(lambda s, _: svi.update(s, *data()), state, length=40)
        return losses

    losses = fit(jnp.stack([KEY, jax.random.key(4)]))
    # The first is the run above; from rounding alone accept and reject may differ late.
    np.testing.assert_allclose(losses[0, :5], result.losses[:5], rtol=1e-4)
    assert np.all(np.isfinite(losses))
    assert np.all(losses[:, -5:].mean(axis=1) < losses[:, 0])


def test_init_state_and_init_params(svi, result, capsys):
    again = svi.run(KEY, 25, *data(), init_state=result.state, progress_bar=True)
    assert int(again.state.optim_state.step) == 65
    assert "avg. loss" in capsys.readouterr().err
    assert again.losses[0] < result.losses[0]
    start = {"w_auto_loc": jnp.array([0.25, -0.5])}
    params = svi.get_params(svi.init(KEY, *data(), init_params=start))
    np.testing.assert_allclose(params["w_auto_loc"], start["w_auto_loc"])


@pytest.mark.parametrize(
    "optim",
    [optax.sgd(0.3), numpyro.optim.Adam(0.05), optimizers.momentum(0.1, 0.5)],
    ids=["optax", "NumPyro", "JAX"],
)
def test_with_an_optimizer_behind_the_preconditioner(optim):
    svi = SVI(
        regression,
        autoguide.AutoNormal(regression),
        optim,
        Trace_ELBO(num_particles=4),
        curvature=Dense(),
        fisher=Predictive(num_particles=4),
        damping=0.03,
    )
    losses = svi.run(KEY, 60, *data(), progress_bar=False).losses
    assert np.all(np.isfinite(losses))
    assert np.mean(losses[-10:]) < losses[0] - 5.0


def test_automatic_rule_takes_curvature_fisher_and_damping():
    guide = autoguide.AutoDelta(regression)
    svi = SVI(regression, guide, curvature=Dense(), fisher=Predictive(), damping=1e-3)
    params = svi.run(KEY, 40, *data(), progress_bar=False).params
    np.testing.assert_allclose(params["w_auto_loc"], posterior()[0], atol=1e-2)


def test_arguments_need_not_be_arrays_and_particles_may_come_one_by_one():
    def model(covariates, targets, *, kind, size=None):
        assert kind == "linear"
        assert size == 6
        regression(covariates, targets)

    loss = Trace_ELBO(num_particles=4, vectorize_particles=False)
    svi = SVI(model, autoguide.AutoDelta(model), loss=loss, kind="linear")
    result = svi.run(KEY, 30, *data(), size=6, progress_bar=False)
    np.testing.assert_allclose(result.params["w_auto_loc"], posterior()[0], atol=1e-2)


def test_convergence_stops_the_run_and_says_so(svi):
    rule = Converged(patience=1, max_steps=400)
    found = svi.run(KEY, rule, *data(), progress_bar=False)
    assert found.converged is True
    assert len(found.losses) < 400
    by_name = svi.run(KEY, "auto", *data(), progress_bar=False)
    assert by_name.converged is True
    assert len(found.losses) <= len(by_name.losses) < Converged().max_steps
    short = svi.run(KEY, Converged(max_steps=150), *data(), progress_bar=False)
    assert short.converged is False
    assert len(short.losses) == 150


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optim": "adam"}, "optim"),
        ({"optim": numpyro.optim.Minimize()}, "one gradient at a time"),
        ({"curvature": "dense"}, "curvature"),
        ({"fisher": "predictive"}, "fisher"),
        ({"damping": "small"}, "damping"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(InputError, match=message):
        SVI(regression, autoguide.AutoNormal(regression), **arguments)


@pytest.mark.parametrize("num_steps", ["forever", 0, 1.5])
def test_wrong_number_of_steps(svi, num_steps):
    with pytest.raises(InputError, match="num_steps"):
        svi.run(KEY, num_steps, *data())


def test_update_before_init():
    other = SVI(regression, autoguide.AutoNormal(regression))
    with pytest.raises(InputError, match="init"):
        other.update(SVIState(None, None, KEY), *data())


def test_a_run_whose_loss_is_never_finite_stops_with_a_word():
    """The rate overflows wherever the guide is: no start nearer to zero helps."""

    def counts(values):
        level = numpyro.sample("level", dist.Normal(0.0, 20.0))
        with numpyro.plate("data", len(values)):
            numpyro.sample("count", dist.Poisson(jnp.exp(200.0 + level)), obs=values)

    svi = SVI(counts, autoguide.AutoNormal(counts, init_scale=1e3))
    state = jax.jit(svi.init)(KEY, jnp.zeros(5))
    with pytest.warns(RuntimeWarning, match="stopped after .*log-likelihood of 'count'.*nearer"):
        result = svi.run(KEY, 2000, jnp.zeros(5), init_state=state, progress_bar=False)
    assert len(result.losses) < 2000
    np.testing.assert_allclose(result.params["level_auto_scale"], 1e3, rtol=1e-5)


def test_keys_of_raw_numbers_are_taken():
    svi = SVI(regression, autoguide.AutoNormal(regression))
    state = jax.eval_shape(svi.init, jax.random.PRNGKey(0), *data())
    after, loss = jax.eval_shape(svi.update, state, *data())
    assert loss.shape == ()
    assert after.rng_key.shape == (2,)


def test_parameters_keep_a_lower_precision_than_the_data(x64):
    svi = SVI(regression, autoguide.AutoNormal(regression))
    start = {"w_auto_loc": jnp.zeros(2, jnp.float32), "w_auto_scale": jnp.ones(2, jnp.float32)}
    init = lambda key: svi.init(key, *data(), init_params=start)
    state = jax.eval_shape(init, jax.random.key(0))
    after, _ = jax.eval_shape(svi.update, state, *data())
    assert jax.tree.map(lambda leaf: leaf.dtype, after) == jax.tree.map(
        lambda leaf: leaf.dtype, state
    )
    assert after.optim_state.accepted.variational["w_auto_loc"].dtype == jnp.float32


def test_a_gradient_that_is_never_finite_stops_the_run_with_a_word():
    def model(values):
        mean = numpyro.sample("mean", dist.Normal(0, 5))
        with numpyro.plate("data", 4):
            numpyro.sample("y", dist.Normal(mean + jnp.sqrt(0.0 * mean**2), 1.0), obs=values)

    def guide(values):
        numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.0), 0.1))

    with pytest.warns(RuntimeWarning, match="no step could be taken.*gradient of 'loc'"):
        result = SVI(model, guide).run(jax.random.key(0), 60, jnp.full(4, 2.0), progress_bar=False)
    assert len(result.losses) < 60
    assert np.all(np.isfinite(result.losses))
