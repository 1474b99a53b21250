"""Programs that ran with NumPyro's SVI and not with ours."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Trace_ELBO, TraceGraph_ELBO, autoguide
from numpyro.infer.svi import SVIState
from small_models import (
    beta_guide,
    coin,
    gamma_guide,
    normal_guide,
    normal_mean,
    poisson_rate,
)

from vpng.errors import InputError
from vpng.numpyro import SVI

KEY = jax.random.key(0)


def one_step(svi, *args):
    state = svi.init(KEY, *args)
    return jax.jit(svi.update)(state, *args)


def never_called(function, keys):
    raise AssertionError("one particle needs no map")


@pytest.mark.parametrize("how", [jax.pmap, never_called], ids=["pmap", "own"])
def test_one_particle_needs_no_map(make_usual, y, how):
    loss = Trace_ELBO(vectorize_particles=how)
    svi = make_usual(normal_mean, normal_guide, loss)
    assert np.isfinite(one_step(svi, y)[1])
    assert np.isfinite(svi.evaluate(svi.init(KEY, y), y))


@pytest.mark.parametrize(
    "how",
    [jax.vmap, lambda function: jax.vmap(function), lambda f, keys: jax.vmap(f)(keys)],
    ids=["vmap", "returns a function", "takes the keys"],
)
def test_a_map_has_either_shape(make_ours_usual, how):
    """As many particles as make two groups of more than one."""
    given = Trace_ELBO(num_particles=4, vectorize_particles=how)
    np.testing.assert_allclose(
        losses_of(make_ours_usual, given), losses_of_four(make_ours_usual), rtol=1e-6
    )


@cache
def losses_of_four(make):
    return losses_of(make, Trace_ELBO(num_particles=4))


def losses_of(make, loss):
    """Of a step, and of `evaluate`."""
    y = jnp.array([0.3, 1.2, 0.7, 1.5, 0.1])
    svi = make(normal_mean, normal_guide, loss)
    return one_step(svi, y)[1], svi.evaluate(svi.init(KEY, y), y)


def test_the_optimizer_of_an_svi_reads_unconstrained_parameters(make_usual, y):
    svi = make_usual(normal_mean, normal_guide, Trace_ELBO())
    state, _ = one_step(svi, y)
    raw = svi.optim.get_params(state.optim_state)
    params = svi.get_params(state)
    np.testing.assert_allclose(raw["location"], params["location"])
    np.testing.assert_allclose(jnp.exp(raw["scale"]), params["scale"], rtol=1e-6)


def test_the_optimizer_of_an_svi_starts_from_parameters_of_ones_own(make_svi, y):
    svi = make_svi(normal_mean, normal_guide, Trace_ELBO())
    svi.init(KEY, y)
    begun = svi.optim.init({"location": jnp.array(0.25), "scale": jnp.array(-1.0)})
    params = svi.get_params(SVIState(begun, None, KEY))
    np.testing.assert_allclose(params["location"], 0.25)
    np.testing.assert_allclose(params["scale"], np.exp(-1.0), rtol=1e-6)


@pytest.mark.parametrize("method", ["update", "eval_and_update", "eval_and_stable_update"])
def test_the_optimizer_of_an_svi_says_what_to_use_for_a_step(make_ours, y, method):
    svi = make_ours(normal_mean, normal_guide, Trace_ELBO())
    state = svi.init(KEY, y)
    with pytest.raises(InputError, match=rf"svi\.optim\.{method}.*svi\.update\(svi_state, \*args"):
        getattr(svi.optim, method)(None, state.optim_state)


def test_the_optimizer_of_an_svi_before_init():
    with pytest.raises(InputError, match=r"call svi\.init"):
        SVI(normal_mean, normal_guide).optim.get_params(None)


def without_latents(y):
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def fixed_guide(y):
    numpyro.sample("mean", dist.Normal(0.5, 0.3))


@pytest.mark.parametrize(
    ("model", "guide"),
    [
        (without_latents, lambda y: None),
        (normal_mean, fixed_guide),
        (normal_mean, handlers.substitute(fixed_guide, data={"mean": jnp.array(0.4)})),
    ],
    ids=["no latent", "fixed guide", "substituted"],
)
def test_nothing_to_learn(make_svi, y, model, guide):
    svi = make_svi(model, guide, Trace_ELBO())
    result = svi.run(KEY, 3, y, progress_bar=False)
    assert result.params == {}
    assert np.all(np.isfinite(result.losses))
    likelihood = -np.sum(dist.Normal(0.0, 1.0).log_prob(y))
    if model is without_latents:
        np.testing.assert_allclose(result.losses, likelihood, rtol=1e-6)
        np.testing.assert_allclose(svi.evaluate(result.state, y), likelihood, rtol=1e-6)


def test_a_parameter_that_the_guide_alone_initialises(make_usual, y):
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mean, jnp.exp(numpyro.param("level"))), obs=y)

    def guide(y):
        level = numpyro.param("level", 0.1)
        numpyro.sample("mean", dist.Normal(numpyro.param("location", 0.0), jnp.exp(level)))

    svi = make_usual(model, guide, Trace_ELBO())
    np.testing.assert_allclose(svi.get_params(svi.init(KEY, y))["level"], 0.1)
    result = svi.run(KEY, 60, y, progress_bar=False)
    # The width of q and of the data: below one, far from where it began.
    assert result.params["level"] < -0.1


def test_init_lets_the_model_read_the_value_of_a_parameter(make_svi, y):
    seen = []

    def model(y):
        level = numpyro.param("level", 2.0)
        seen.append(float(level))
        normal_mean(y)

    svi = make_svi(model, autoguide.AutoNormal(model), Trace_ELBO())
    np.testing.assert_allclose(svi.get_params(svi.init(KEY, y))["level"], 2.0)
    assert set(seen) == {2.0}


@pytest.mark.filterwarnings("ignore:numpyro.factor sites")
def test_a_shared_parameter_without_latents_or_data(make_svi, y):
    def model(y):
        numpyro.factor("near one", -jnp.sum((numpyro.param("place", jnp.zeros(2)) - 1.0) ** 2))

    def guide(y):
        numpyro.param("place", jnp.full(2, 0.5))

    svi = make_svi(model, guide, Trace_ELBO(), numpyro.optim.Adam(0.1))
    result = svi.run(KEY, 60, y, progress_bar=False)
    # A minimum of 0; Adam's steps of 0.1 have died away to some hundredths by then.
    np.testing.assert_allclose(result.params["place"], 1.0, atol=0.05)


def several_at_once(count):
    def guide(y):
        location = numpyro.param("location", 0.0)
        scale = numpyro.param("scale", 1.0, constraint=dist.constraints.positive)
        numpyro.sample("mean", dist.Normal(location, scale).expand([count]))

    return guide


def test_a_guide_of_several_samples_has_numpyros_loss(make_svi, y):
    loss = Trace_ELBO(multi_sample_guide=True)
    svi = make_svi(normal_mean, several_at_once(3), loss)
    state = svi.init(KEY, y)
    found = svi.evaluate(state, y)
    _, key = jax.random.split(state.rng_key)
    params = {"location": jnp.array(0.0), "scale": jnp.array(1.0)}
    wanted = loss.loss(key, params, normal_mean, several_at_once(3), y)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_guide_of_several_samples_finds_the_posterior(y):
    svi = SVI(normal_mean, several_at_once(3), loss=Trace_ELBO(multi_sample_guide=True))
    params = svi.run(KEY, 300, y, progress_bar=False).params
    # The guide holds the posterior, where the score cancels the noise of the gradient.
    np.testing.assert_allclose(params["location"], y.sum() / 6, atol=0.01)
    np.testing.assert_allclose(params["scale"], 6**-0.5, rtol=0.01)


def test_samples_of_different_number_are_refused_by_name(make_ours, y):
    def guide(y):
        numpyro.sample("mean", dist.Normal(numpyro.param("location", 0.0), 1.0).expand([2]))
        numpyro.sample("other", dist.Normal(0.0, 1.0).expand([3]))

    def model(y):
        numpyro.sample("other", dist.Normal(0.0, 1.0))
        normal_mean(y)

    svi = make_ours(model, guide, Trace_ELBO(multi_sample_guide=True))
    with pytest.raises(InputError, match=r"multi_sample_guide.*'mean': \(2,\).*'other': \(3,\)"):
        svi.init(KEY, y)


def counting(y):
    """Every particle writes its own draw; the count is the same for all."""
    noted = numpyro.primitives.mutable("noted", {"count": jnp.zeros(()), "mean": jnp.zeros(())})
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    noted["count"] = noted["count"] + 1
    noted["mean"] = mean
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.mark.parametrize("num_particles", [pytest.param(1, marks=pytest.mark.exhaustive), 4])
def test_mutable_state_is_that_of_the_first_particle(make_ours_usual, y, num_particles):
    """Neither lost nor mixed: one more for every step that is taken, and one draw's value."""
    svi = make_ours_usual(counting, normal_guide, Trace_ELBO(num_particles=num_particles))
    state = svi.init(KEY, y)
    begun = float(state.mutable_state["noted"]["count"])
    update = jax.jit(svi.update)
    after, _ = update(state, y)
    assert float(after.mutable_state["noted"]["count"]) == begun + 1
    shapes = lambda tree: jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)
    assert shapes(after.mutable_state) == shapes(state.mutable_state)
    _, step_key = jax.random.split(state.rng_key)
    loss_key = jax.random.split(step_key, 3)[0]
    halves = 2 if svi.transformation is None else 1
    keys = jax.random.split(loss_key, (halves, max(1, -(-num_particles // halves))))
    _, guide_key = jax.random.split(keys[0, 0])
    first = handlers.trace(handlers.seed(normal_guide, guide_key)).get_trace(y)["mean"]["value"]
    np.testing.assert_allclose(after.mutable_state["noted"]["mean"], first, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "guide", "data", "truth"),
    [
        (
            poisson_rate,
            gamma_guide,
            [3.0, 2.0, 5.0, 4.0, 1.0],
            {"shape": 17.0, "inverse_scale": 6.0},
        ),
        pytest.param(
            coin,
            beta_guide,
            [1.0] * 6 + [0.0] * 4,
            {"heads": 16.0, "tails": 14.0},
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=["gamma", "beta"],
)
@pytest.mark.parametrize("num_particles", [pytest.param(1, marks=pytest.mark.exhaustive), 4])
def test_graph_elbo_of_a_family_that_holds_the_posterior_is_exact(
    model, guide, data, truth, num_particles
):
    """Adam after as many steps is wrong by a tenth; without noise at the optimum we are not."""
    svi = SVI(model, guide, loss=TraceGraph_ELBO(num_particles=num_particles))
    params = svi.run(KEY, 300, jnp.array(data), progress_bar=False).params
    for name, value in truth.items():
        np.testing.assert_allclose(params[name], value, rtol=0.01)


def test_bounds_that_are_arrays_are_constants_of_the_problem(y, recwarn):
    def model(y):
        widest = numpyro.sample("widest", dist.LogNormal(0.0, 0.5))
        place = numpyro.sample("place", dist.Uniform(0.0, widest))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(place, 0.5), obs=y)

    svi = SVI(model, autoguide.AutoDelta(model), loss=Trace_ELBO())
    result = svi.run(KEY, 20, y, progress_bar=False)
    assert result.losses[-1] < result.losses[0]
    assert not [each for each in recwarn if "static" in str(each.message)]


def test_the_weights_of_a_surrogate_do_not_run_off(make_ours_usual):
    x = jnp.linspace(-1.0, 1.0, 20)
    labels = (x > 0.2).astype(float)

    def prior():
        return numpyro.sample("slope", dist.Normal(0.0, 1.0))

    def model():
        slope = prior()
        with numpyro.plate("data", 20):
            numpyro.sample("label", dist.Bernoulli(logits=slope * x), obs=labels)

    def surrogate():
        slope = prior()
        counts = numpyro.param("counts", jnp.full(4, 5.0), constraint=dist.constraints.positive)
        with numpyro.plate("some", 4), handlers.scale(scale=counts):
            numpyro.sample("label", dist.Bernoulli(logits=slope * x[::5]), obs=labels[::5])

    guide = autoguide.AutoSurrogateLikelihoodDAIS(model, surrogate, K=2)
    svi = make_ours_usual(model, guide, Trace_ELBO(num_particles=4))
    result = svi.run(KEY, 100, progress_bar=False)
    # They move the path of the draws only a little, so that a hundred steps do not take them far.
    assert np.all((result.params["counts"] > 1.0) & (result.params["counts"] < 15.0))
    assert np.mean(result.losses[-20:]) < np.mean(result.losses[:3])
