"""A second run of an `SVI` is traced again where anything that it reads has changed, else not."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal

from vpng.numpyro import SVI

KEY = jax.random.key(0)
SETTING = {"scale": 1.0}
traced = []


class Centre:
    """A model with an attribute."""

    def __init__(self, at):
        self.at = at

    def __call__(self, y):
        traced.append("model")
        z = numpyro.sample("z", dist.Normal(self.at, SETTING["scale"]))
        numpyro.sample("y", dist.Normal(z, 1.0).expand([y.shape[0]]).to_event(1), obs=y)


@pytest.fixture
def svi():
    SETTING["scale"] = 1.0
    model = Centre(0.0)
    return SVI(lambda y: Centre.__call__(model, y), AutoNormal(model)), model


def location(svi, y, num_steps=150, seed=0):
    """Where a run ends, and how often the model was traced for it beyond `init`."""
    traced.clear()
    svi.init(KEY, y)
    of_init = len(traced)
    traced.clear()
    result = svi.run(jax.random.key(seed), num_steps, y, progress_bar=False)
    return float(result.params["z_auto_loc"]), len(traced) - of_init


def posterior_mean(y, at=0.0, scale=1.0):
    precision = 1 / scale**2 + len(y)
    return (at / scale**2 + float(np.sum(y))) / precision


def data(seed):
    return jnp.asarray(np.random.default_rng(seed).normal(2.0, 1.0, 4).astype(np.float32))


def test_other_values_steps_and_seeds_are_not_traced_again(svi):
    svi, _ = svi
    first, again = data(0), data(1)
    assert location(svi, first)[1] > 0
    found, times = location(svi, again, num_steps=180, seed=3)
    assert times == 0
    np.testing.assert_allclose(found, posterior_mean(again), atol=1e-3)


@pytest.mark.parametrize("what", ["global", "attribute", "shape", "values of the host"])
def test_what_has_changed_is_seen(svi, what):
    svi, model = svi
    y, about = data(0), {}
    location(svi, y)
    if what == "global":
        about = {"scale": 0.5}
        SETTING.update(about)
    elif what == "attribute":
        about = {"at": -4.0}
        model.at = -4.0
    elif what == "shape":
        y = jnp.concatenate([y, y])
    else:
        location(svi, np.asarray(y))
        y = np.asarray(data(2))
    found, times = location(svi, y)
    assert times > 0
    np.testing.assert_allclose(found, posterior_mean(y, **about), atol=1e-3)


def test_a_model_may_read_its_data():
    def reading(y):
        centre = float(np.mean(np.asarray(y)))
        z = numpyro.sample("z", dist.Normal(centre, 1.0))
        numpyro.sample("y", dist.Normal(z, 1.0).expand([4]).to_event(1), obs=y)

    svi = SVI(reading, AutoNormal(reading))
    for seed in (0, 1):
        y = data(seed)
        result = svi.run(KEY, 150, y, progress_bar=False)
        expected = posterior_mean(y, at=float(jnp.mean(y)))
        np.testing.assert_allclose(result.params["z_auto_loc"], expected, atol=1e-3)


def test_inside_a_handler_nothing_is_taken_from_outside():
    def model(y):
        z = numpyro.sample("z", dist.Normal(numpyro.deterministic("at", 0.0), 1.0))
        numpyro.sample("y", dist.Normal(z, 1.0).expand([4]).to_event(1), obs=y)

    y, svi = data(0), SVI(model, AutoNormal(model))
    svi.run(KEY, 150, y, progress_bar=False)
    with numpyro.handlers.scale(scale=3.0):
        outside = svi.run(KEY, 150, y, progress_bar=False)
    # Prior and likelihood count three times, and so the posterior is narrower by the root of it.
    np.testing.assert_allclose(outside.params["z_auto_loc"], posterior_mean(y), atol=1e-2)


def test_progress_says_that_it_is_compiling(svi, capsys):
    svi, _ = svi
    svi.run(KEY, 5, data(0), progress_bar=False)
    assert capsys.readouterr().err == ""
    # Other shapes.
    svi.run(KEY, 5, jnp.ones(9), progress_bar=True)
    assert "compiling" in capsys.readouterr().err
