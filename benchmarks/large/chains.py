"""Time series: each state depends on the one before it."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal

from large.groups import make
from zoo.case import Case


def cases() -> Iterator[Case]:
    """All of them."""
    yield make("local level", local_level, (level_data(1000),))
    yield make("local level", local_level, (level_data(1000),), AutoLowRankMultivariateNormal)
    yield make("stochastic volatility", volatility, (volatility_data(1500),))
    yield make("scanned counts", scanned, (scanned_data(500),))


def local_level(y):
    drift = numpyro.sample("drift", dist.HalfNormal(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("times", y.shape[0]):
        level = numpyro.sample("level", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("first", dist.Normal(0, 5), obs=level[0])
    numpyro.sample("moves", dist.Normal(level[:-1], drift).to_event(1), obs=level[1:])
    numpyro.sample("y", dist.Normal(level, noise).to_event(1), obs=y)


def level_data(length):
    rng = np.random.default_rng(8)
    level = np.cumsum(0.2 * rng.normal(size=length))
    return (level + 0.6 * rng.normal(size=length)).astype(np.float32)


def volatility(y):
    sigma = numpyro.sample("sigma", dist.Exponential(10.0))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    walk = dist.GaussianRandomWalk(scale=sigma, num_steps=y.shape[0])
    s = numpyro.sample("s", walk)
    numpyro.sample("y", dist.StudentT(nu, 0.0, jnp.exp(s)).to_event(1), obs=y)


def volatility_data(length):
    rng = np.random.default_rng(9)
    s = -1 + np.cumsum(0.05 * rng.normal(size=length))
    return (np.exp(s) * rng.standard_t(8, size=length)).astype(np.float32)


def scanned(y):
    persistence = numpyro.sample("persistence", dist.Beta(8, 2))
    spread = numpyro.sample("spread", dist.HalfNormal(0.5))
    level = numpyro.sample("level", dist.Normal(0, 2))

    def step(state, observed):
        state = numpyro.sample("state", dist.Normal(persistence * state, spread))
        numpyro.sample("y", dist.Poisson(jnp.exp(level + state)), obs=observed)
        return state, None

    scan(step, jnp.zeros(()), y)


def scanned_data(length):
    rng = np.random.default_rng(10)
    state = np.zeros(length)
    for t in range(1, length):
        state[t] = 0.9 * state[t - 1] + 0.3 * rng.normal()
    return rng.poisson(np.exp(1 + state)).astype(np.int32)
