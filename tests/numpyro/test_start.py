"""`init` as one program: what NumPyro's own finds, from few compilations, and a whole guide.

Oracle: NumPyro's `init` with the same key, one operation after the other.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import monitoring
from numpyro import handlers, infer, optim
from numpyro.contrib.control_flow import scan
from numpyro.infer import Trace_ELBO, autoguide

from vpng.numpyro import SVI, start
from vpng.numpyro.rule_as_optimizer import Passing
from vpng.numpyro.start import first_state
from vpng.runtime.kept_tracers import kept_tracers, with_values

WEIGHTS = jnp.array([0.3, -1.2, 0.8, 2.0, -0.4])


def spread_model(observed):
    # Out of alphabetical order on purpose: the guide's vector has the order of the model.
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    centre = numpyro.sample("centre", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", observed.shape[0]):
        numpyro.sample("observed", dist.Normal(centre, scale), obs=observed)


def counting_model(observed):
    groups = np.arange(observed.shape[0]) % 2
    # Reads values, as models do that find out how many groups there are.
    with numpyro.plate("groups", int(groups.max()) + 1 + int(observed.max() > 100)):
        mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    numpyro.sample("observed", dist.Normal(mean[groups], 1.0), obs=observed)


def learned_model(observed):
    noise = numpyro.param("noise", 1.5, constraint=dist.constraints.positive)
    centre = numpyro.sample("centre", dist.Normal(0.0, 3.0))
    numpyro.deterministic("twice", 2 * centre)
    numpyro.sample("observed", dist.Normal(centre, noise), obs=observed)


def written_model(observed):
    seen = numpyro.primitives.mutable("seen", {"count": 0.0})
    centre = numpyro.sample("centre", dist.Normal(0.0, 3.0))
    seen["count"] = seen["count"] + jnp.mean(observed)
    numpyro.sample("observed", dist.Normal(centre, 1.0), obs=observed)


def subsampled_model(observed):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    with numpyro.plate("data", observed.shape[0], subsample_size=2) as chosen:
        local = numpyro.sample("local", dist.Normal(0.0, scale))
        numpyro.sample("observed", dist.Normal(local, 1.0), obs=observed[chosen])


def scanned_model(observed):
    drift = numpyro.sample("drift", dist.Normal(0.0, 1.0))

    def move(level, value):
        level = numpyro.sample("level", dist.Normal(level + drift, 1.0))
        numpyro.sample("observed", dist.Normal(level, 1.0), obs=value)
        return level, None

    scan(move, jnp.zeros(()), observed)


def listed(model):
    parts = autoguide.AutoGuideList(model)
    parts.append(autoguide.AutoNormal(handlers.block(model, hide=["scale"])))
    parts.append(autoguide.AutoDelta(handlers.block(model, expose=["scale"])))
    return parts


def around(model):
    inside = autoguide.AutoDiagonalNormal(model)
    return lambda *args: inside(*args)


class Remembering:
    """A guide of one's own that keeps an array from its first call."""

    def __init__(self, model):
        self.start = None

    def __call__(self, observed):
        if self.start is None:
            self.start = jnp.mean(observed) + jnp.zeros(())
        centre = numpyro.param("centre_at", self.start)
        numpyro.sample("centre", dist.Normal(centre, 0.1))
        numpyro.sample("scale", dist.LogNormal(0.0, 0.1))


CASES = {
    "normal": (spread_model, autoguide.AutoNormal),
    "full": (spread_model, autoguide.AutoMultivariateNormal),
    "low rank": (spread_model, autoguide.AutoLowRankMultivariateNormal),
    "delta": (spread_model, autoguide.AutoDelta),
    "flow": (spread_model, autoguide.AutoIAFNormal),
    "annealed": (spread_model, lambda model: autoguide.AutoDAIS(model, K=2)),
    "list": (spread_model, listed),
    "inside a function": (spread_model, around),
    "of one's own": (spread_model, Remembering),
    "reads values": (counting_model, autoguide.AutoNormal),
    "parameters": (learned_model, autoguide.AutoMultivariateNormal),
    "mutable": (written_model, autoguide.AutoNormal),
    "minibatches": (subsampled_model, autoguide.AutoNormal),
    "scan": (scanned_model, autoguide.AutoNormal),
}


def plain(model, guide):
    return infer.SVI(model, guide, optim.Adam(0.1), Trace_ELBO())


def passing(model, guide):
    return infer.SVI(model, guide, Passing(), Trace_ELBO())


def params_of(svi, state):
    """Of one whose optimizer hands its parameters on."""
    return svi.constrain_fn(state.optim_state)


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.fixture
def attempts(monkeypatch):
    """The states that programs found; None for an attempt that was given up."""
    found, state = [], start._Attempt.state
    noted = lambda self, key: (found.append(state(self, key)), found[-1])[1]
    monkeypatch.setattr(start._Attempt, "state", noted)
    return found


@pytest.mark.parametrize("case", CASES)
def test_numpyros_own_start(case, attempts):
    model, make = CASES[case]
    key = jax.random.key(3)
    # Only NumPy's arrays have values while a model is traced.
    data = np.asarray(WEIGHTS) if case == "reads values" else WEIGHTS
    ours, theirs = passing(model, make(model)), plain(model, make(model))
    found = first_state(ours, key, (data,), {}, None)
    expected = theirs.init(key, data)
    assert attempts == [found]
    assert_same(params_of(ours, found), theirs.get_params(expected))
    assert_same(found.mutable_state, expected.mutable_state)
    np.testing.assert_array_equal(
        jax.random.key_data(found.rng_key), jax.random.key_data(expected.rng_key)
    )
    # The guide is whole: it answers outside of any trace, and alike.
    draw = lambda guide, params: handlers.trace(
        handlers.substitute(handlers.seed(guide, 1), data=params)
    ).get_trace(data)
    params = theirs.get_params(expected)
    values = lambda trace: {
        name: site["value"] for name, site in trace.items() if site["type"] == "sample"
    }
    assert_same(values(draw(ours.guide, params)), values(draw(theirs.guide, params)))


def test_few_programs():
    # NumPyro's own compiles more than a hundred for this model.
    compiled = []
    listen = lambda name, seconds, **_: compiled.append(name)
    jax.clear_caches()
    svi = SVI(spread_model, autoguide.AutoMultivariateNormal(spread_model))
    monitoring.register_event_duration_secs_listener(listen)
    try:
        svi.init(jax.random.key(5), WEIGHTS)
    finally:
        monitoring.unregister_event_duration_listener(listen)
    assert sum(name.endswith("backend_compile_duration") for name in compiled) <= 8


def narrow_model(observed):
    # A point is valid only in the upper half of what is drawn from.
    place = numpyro.sample("place", dist.Normal(0.0, 1.0))
    numpyro.factor("half", jnp.where(place > 0, 0.0, -jnp.inf))
    numpyro.sample("observed", dist.Normal(place, 1.0), obs=observed)


@pytest.mark.parametrize("seed", range(4))
def test_points_are_drawn_until_one_is_valid(seed, attempts):
    make, key = autoguide.AutoDiagonalNormal, jax.random.key(seed)
    ours, theirs = (
        passing(narrow_model, make(narrow_model)),
        plain(narrow_model, make(narrow_model)),
    )
    found = params_of(ours, first_state(ours, key, (WEIGHTS,), {}, None))
    assert_same(found, theirs.get_params(theirs.init(key, WEIGHTS)))
    assert found["auto_loc"][0] > 0
    assert attempts[-1] is not None


def impossible_model(observed):
    place = numpyro.sample("place", dist.Normal(0.0, 1.0))
    numpyro.factor("never", jnp.where(place > 1e6, 0.0, -jnp.inf))
    numpyro.sample("observed", dist.Normal(place, 1.0), obs=observed)


def test_no_valid_start_is_numpyros_error():
    svi = passing(impossible_model, autoguide.AutoDiagonalNormal(impossible_model))
    with pytest.raises(RuntimeError, match="Cannot find valid initial parameters"):
        first_state(svi, jax.random.key(0), (WEIGHTS,), {}, None)
    assert not kept_tracers([vars(svi.guide), vars(svi)])


def test_bad_arguments_are_numpyros_error():
    def model(observed):
        numpyro.sample("centre", dist.Normal(0.0, -1.0))

    svi = passing(model, autoguide.AutoNormal(model))
    with pytest.raises(ValueError, match="Normal distribution got invalid scale parameter"):
        first_state(svi, jax.random.key(0), (WEIGHTS,), {}, None)


def test_starts_from_given_values():
    svi = passing(learned_model, autoguide.AutoNormal(learned_model))
    given = {"noise": jnp.asarray(0.25), "centre_auto_loc": jnp.asarray(7.0)}
    params = params_of(svi, first_state(svi, jax.random.key(0), (WEIGHTS,), {}, given))
    np.testing.assert_allclose(params["noise"], 0.25, rtol=1e-6)
    np.testing.assert_allclose(params["centre_auto_loc"], 7.0)


def test_warnings_are_kept():
    def model(observed):
        warnings.warn("look at this", UserWarning, stacklevel=1)
        spread_model(observed)

    svi = passing(model, autoguide.AutoNormal(model))
    with pytest.warns(UserWarning, match="look at this"):
        first_state(svi, jax.random.key(0), (WEIGHTS,), {}, None)


def test_values_reach_every_kind_of_holder():
    kept, untouched = {}, {"deep": [1, 2]}

    def traced(value):
        inner = lambda: value + 1
        kept["all"] = {
            "pair": (value, [value]),
            "function": inner,
            "object": dist.Normal(value, 1.0),
            "none": untouched,
        }
        return kept_tracers(kept["all"])

    values = jax.jit(traced)(jnp.asarray(3.0))
    tracers = kept_tracers(kept["all"])
    found = with_values(kept["all"], tracers, values, [])
    assert found["pair"] == (3.0, [3.0])
    assert found["function"]() == 4.0
    assert found["object"].loc == 3.0
    assert found["none"] is untouched
    assert not kept_tracers(found)
