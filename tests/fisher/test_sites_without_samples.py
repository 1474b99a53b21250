"""Sites whose family cannot be sampled at all, or not with the library's own keys."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from vpng.fisher import Exact, Probed, Sampled
from vpng.problem import Site
from vpng.random import written_out

KEY = jax.random.key(0)
POISSON = {
    "zero inflated": lambda rate: dist.ZeroInflatedPoisson(0.3, rate),
    "mixture": lambda rate: dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.array([0.5, 0.5])),
        dist.Poisson(rate[..., None] * jnp.array([1.0, 3.0])),
    ),
}


def unsampled():
    """A new family, of which nothing has been said yet."""

    class OnlyDensity(dist.Distribution):
        support = dist.constraints.real

        def __init__(self, loc):
            self.loc = loc
            super().__init__(batch_shape=jnp.shape(loc))

        def log_prob(self, value):
            return -jnp.log(jnp.cosh(value - self.loc))

    return OnlyDensity


@pytest.mark.parametrize("name", POISSON)
def test_poisson_draws_are_those_of_jaxs_own_key(name):
    site = Site(POISSON[name](jnp.ones(4)), jnp.zeros(4), 1.0)
    draw = jax.jit(lambda key: Sampled(3).draw(key, site))
    np.testing.assert_array_equal(draw(written_out(KEY)), draw(KEY))


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize(
    "estimator", [Exact(), Sampled(2), Probed()], ids=lambda e: type(e).__name__
)
def test_what_cannot_be_sampled_has_rows_of_zero_and_says_so_once(estimator, moving):
    family = unsampled()
    site = Site(family(jnp.ones(2)).expand([3, 2]).to_event(1), jnp.zeros((3, 2)), 0.1, moving)
    with pytest.warns(UserWarning, match=r"OnlyDensity.*loss.*absent from the curvature"):
        draws = estimator.draw(KEY, site)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        estimator.draw(KEY, site)
    np.testing.assert_array_equal(estimator.rows(site, draws), np.zeros(3))
