"""What keeps a loss from being finite is called by its name."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal

from vpng.numpyro import SVI
from vpng.numpyro.causes import cause_at, far_off
from vpng.numpyro.evaluation import Losses
from vpng.numpyro.problem import Call

KEY = jax.random.key(0)
GOOD = np.ones(3, np.float32)


def model(values):
    """Sites that break for different reasons."""
    place = numpyro.sample("place", dist.Normal(0.0, 1.0))
    width = numpyro.sample("width", dist.LogNormal(0.0, 0.1))
    offset = numpyro.param("offset", 1.0)
    numpyro.factor("weight", jnp.log(10.0 + values[0]))
    rate = jnp.exp(place) + jnp.sqrt(offset**2)
    numpyro.sample("count", dist.Poisson(rate * width), obs=values)


@pytest.fixture(scope="module")
def start():
    svi = SVI(model, AutoNormal(model), loss=Trace_ELBO())
    state = jax.jit(svi.init)(KEY, GOOD)
    return svi, state.optim_state


@pytest.mark.parametrize(
    ("changed", "values", "parts", "advice"),
    [
        ({"place_auto_loc": jnp.nan}, GOOD, "parameter of 'place_auto_loc'", "learning rate"),
        ({"width_auto_loc": 300.0}, GOOD, "draw of 'width' in 20 of 20 draws", "init_scale"),
        ({}, np.array([-11.0, 1.0, 1.0]), "factor of 'weight' in 20 of 20 draws", "float64"),
        ({"place_auto_loc": 200.0}, GOOD, "log-likelihood of 'count' in 20 of 20", "nearer"),
        ({}, np.array([1.0, np.nan, -3.0]), "'count', 2 of 3 values of which", "these data"),
        ({"offset": 0.0}, GOOD, "gradient of 'offset'", "sqrt"),
        ({}, GOOD, "none of its parts", "float64"),
    ],
)
@pytest.mark.filterwarnings("ignore:Out-of-support")
def test_the_first_thing_that_is_not_finite_is_named(start, changed, values, parts, advice):
    svi, state = start
    point = state.accepted
    moved = {name: jnp.asarray(value, jnp.float32) for name, value in changed.items()}
    point = type(point)(
        *({name: moved.get(name, value) for name, value in part.items()} for part in point)
    )
    call = Call((values,), {}, {}, {})
    found = cause_at(KEY, Losses.drawn(KEY, svi.loss, svi.problem, call), point, call)
    assert parts in found.parts
    assert advice in found.advice


@pytest.mark.parametrize(
    ("step", "nats", "far"),
    [(500, 4e5, True), (500, 3.0, True), (500, 0.3, False), (20, 4e5, False)],
)
def test_a_gradient_that_is_nothing_but_noise_is_mentioned(start, step, nats, far):
    svi, state = start
    signal = state.signal._replace(noise=jnp.full_like(state.signal.noise, nats))
    said = far_off(state._replace(step=jnp.asarray(step), signal=signal), svi.problem)
    assert bool(said) == far
    assert ("After 500 steps" in said and "far from the posterior" in said) == far


def test_a_start_that_overflows_is_drawn_in_and_a_remark_says_so():
    """The rate overflows above 88, where the first draws of the guide are spread by 20."""

    def model(y):
        level = numpyro.sample("level", dist.Normal(0.0, 100.0))
        numpyro.sample("y", dist.Poisson(jnp.exp(level)), obs=y)

    start = init_to_value(values={"level": 80.0})
    guide = AutoNormal(model, init_loc_fn=start, init_scale=20.0)
    with pytest.warns(RuntimeWarning, match=r"drawn in \d+ times"):
        result = SVI(model, guide).run(KEY, 300, jnp.asarray(1000), progress_bar=False)
    assert not np.isfinite(result.losses[0])
    # The mode of log Gamma(1000), nearly a Normal.
    np.testing.assert_allclose(result.params["level_auto_loc"], np.log(1000.0), atol=0.01)
