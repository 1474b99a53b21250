"""Where we differ from NumPyro on purpose: the page lists all of it, and each is shown here."""

import inspect
import re
import warnings
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import infer
from numpyro.infer import Trace_ELBO
from small_models import normal_guide, normal_mean

from vpng import BayesianNetwork
from vpng.errors import InputError
from vpng.numpyro import SVI

KEY = jax.random.key(0)
PAGE = Path(__file__).parents[3] / "docs" / "numpyro.md"
SHOWN = {}


def shows(name):
    def keep(function):
        SHOWN[name] = function
        return function

    return keep


@shows("what is not finite")
def update_drops_what_is_not_finite(y):
    bad = jnp.array([jnp.nan, 1.0, 1.0, 1.0, 1.0])
    moved = lambda svi: svi.get_params(jax.jit(svi.update)(svi.init(KEY, y), bad)[0])["location"]
    with numpyro.validation_enabled(False):
        optim = numpyro.optim.Adam(0.1)
        assert np.isnan(moved(infer.SVI(normal_mean, normal_guide, optim, Trace_ELBO())))
        assert moved(SVI(normal_mean, normal_guide, optim, Trace_ELBO())) == 0.0


@shows("sites that cannot be reparameterised")
def such_a_site_is_refused_by_name(y):
    def model(y):
        numpyro.sample("kind", dist.Bernoulli(0.5))
        normal_mean(y)

    def guide(y):
        numpyro.sample("kind", dist.Bernoulli(0.5))
        normal_guide(y)

    with pytest.raises(InputError, match="'kind'"):
        SVI(model, guide).init(KEY, y)


@shows("`Minimize`")
def minimize_is_refused(y):
    with pytest.raises(InputError, match="one gradient at a time"):
        SVI(normal_mean, normal_guide, numpyro.optim.Minimize())


@shows("`optim_state`")
def the_state_of_the_optimizer_is_our_own(y):
    svi = SVI(normal_mean, normal_guide)
    state = svi.init(KEY, y).optim_state
    assert not (len(state) == 2 and np.ndim(state[0]) == 0)
    assert set(svi.optim.get_params(state)) == {"location", "scale"}


@shows("`svi.optim.update`")
def a_step_from_a_gradient_alone_is_refused(y):
    svi = SVI(normal_mean, normal_guide)
    with pytest.raises(InputError, match=r"svi\.update"):
        svi.optim.update({}, svi.init(KEY, y).optim_state)


@shows("particles")
def the_default_loss_and_halves(y):
    assert inspect.signature(infer.SVI).parameters["loss"].default is inspect.Parameter.empty
    svi = SVI(normal_mean, normal_guide)
    svi.init(KEY, y)
    assert svi.loss.num_particles > 1


@shows("mutable state")
def mutable_state_survives_several_particles(y):
    def model(y):
        noted = numpyro.primitives.mutable("noted", {"count": jnp.zeros(())})
        noted["count"] = noted["count"] + 1
        normal_mean(y)

    loss = Trace_ELBO(num_particles=2)
    optim = numpyro.optim.Adam(0.1)
    theirs = infer.SVI(model, normal_guide, optim, loss)
    with pytest.warns(UserWarning, match="ignored"):
        after, _ = theirs.update(theirs.init(KEY, y), y)
    assert after.mutable_state is None
    ours = SVI(model, normal_guide, optim, loss)
    begun = ours.init(KEY, y)
    after, _ = jax.jit(ours.update)(begun, y)
    count = lambda state: float(state.mutable_state["noted"]["count"])
    assert count(after) == count(begun) + 1


@shows("the end of a run")
def a_run_that_leads_nowhere_stops(y):
    bad = jnp.full_like(y, jnp.nan)
    run = lambda svi: svi.run(KEY, 200, bad, progress_bar=False).losses
    with numpyro.validation_enabled(False):
        theirs = infer.SVI(normal_mean, normal_guide, numpyro.optim.Adam(0.1), Trace_ELBO())
        assert run(theirs).shape == (200,)
        with pytest.warns(RuntimeWarning, match="not finite"):
            losses = run(SVI(normal_mean, normal_guide, loss=Trace_ELBO()))
    assert 30 <= len(losses) < 200


@shows("explosions")
def a_leap_far_away_is_taken_back(y):
    def leap(updates, count, params=None):
        far = jnp.where(count == 30, 1000.0, 0.0)
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, far), updates), count + 1

    optim = optax.GradientTransformation(lambda params: jnp.zeros((), int), leap)
    theirs, ours = (
        make(normal_mean, fixed_width, optim, Trace_ELBO()) for make in (infer.SVI, SVI)
    )
    reached = lambda svi: svi.run(KEY, 40, y, progress_bar=False).params["location"]
    assert reached(theirs) == 1000.0
    with pytest.warns(RuntimeWarning, match="exploded once"):
        assert reached(ours) == 0.0


def fixed_width(y):
    numpyro.sample("mean", dist.Normal(numpyro.param("location", 0.0), 0.5))


@shows("warnings")
def what_numpyro_says_nothing_about(y):
    def model(y):
        numpyro.factor("small", -0.1)
        normal_mean(y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        infer.SVI(model, normal_guide, numpyro.optim.Adam(0.1), Trace_ELBO()).init(KEY, y)
    with pytest.warns(UserWarning, match=r"numpyro\.factor"):
        SVI(model, normal_guide, fisher=BayesianNetwork()).init(KEY, y)


@shows("names of our own")
def arguments_of_these_names_are_not_the_models(y):
    def model(y, mesh):
        numpyro.sample("y", dist.Normal(numpyro.sample("mean", dist.Normal(0.0, 1.0)), mesh), obs=y)

    guide = lambda y, mesh: normal_guide(y)
    infer.SVI(model, guide, numpyro.optim.Adam(0.1), Trace_ELBO(), mesh=2.0).init(KEY, y)
    with pytest.raises(InputError, match="mesh"):
        SVI(model, guide, mesh=2.0)
    SVI(partial(model, mesh=2.0), partial(guide, mesh=2.0)).init(KEY, y)
    names = lambda function: set(inspect.signature(function).parameters)
    item = text_of_the_list().split("**names of our own.**")[1].split("\n- ")[0]
    own = (names(SVI) - names(infer.SVI)) | (names(SVI.run) - names(infer.SVI.run))
    assert own | {"SVI", "run", "functools.partial"} == set(re.findall("`(.+?)`", item))


@shows("random numbers")
def update_has_random_numbers_of_its_own(y):
    optim = numpyro.optim.Adam(0.1)
    theirs = infer.SVI(normal_mean, normal_guide, optim, Trace_ELBO())
    ours = SVI(normal_mean, normal_guide, optim, Trace_ELBO())
    state, same = theirs.init(KEY, y), ours.init(KEY, y)
    np.testing.assert_allclose(theirs.evaluate(state, y), ours.evaluate(same, y), rtol=1e-6)
    assert theirs.update(state, y)[1] != jax.jit(ours.update)(same, y)[1]


def text_of_the_list():
    text = PAGE.read_text(encoding="utf-8")
    return text.split("## Differences from NumPyro")[1].split("\n## ")[0]


def listed():
    """The first words, in bold, of every item of the page's list."""
    return re.findall(r"^- \*\*(.+?)\.\*\*", text_of_the_list(), flags=re.MULTILINE)


def test_the_page_lists_what_is_shown_here_and_nothing_else():
    assert sorted(listed()) == sorted(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_the_difference_is_there(name, y):
    SHOWN[name](y)


@pytest.mark.parametrize(
    "method", ["init", "update", "stable_update", "run", "evaluate", "get_params"]
)
def test_methods_take_all_of_numpyros_arguments(method):
    named = lambda owner: {
        name: parameter.kind
        for name, parameter in inspect.signature(getattr(owner, method)).parameters.items()
    }
    assert named(infer.SVI).items() <= named(SVI).items()


def test_no_public_name_is_missing(y):
    theirs = infer.SVI(normal_mean, normal_guide, numpyro.optim.Adam(0.1), Trace_ELBO())
    public = {name for name in dir(theirs) if not name.startswith("_")}
    assert public <= set(dir(SVI(normal_mean, normal_guide)))
