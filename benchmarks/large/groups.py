"""Hierarchies: plates of groups, nested plates, one latent for every observation."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal

from zoo.case import Case

NUM_DRAWS = 64
"""For an ELBO: with the same draws for all, enough to tell two fits of thousands of latents."""


def cases() -> Iterator[Case]:
    """All of them."""
    yield make("slopes of 5,000 groups", slopes, slopes_data(5000, 50_000))
    yield make("zero-inflated counts", zero_inflated, zero_inflated_data(40))
    yield make("nested counts", nested, nested_data(100, 2000))
    yield make("overdispersed counts", overdispersed, overdispersed_data(19_990))
    yield make("ordinal ratings", ordinal, ordinal_data(300), guide=AutoDiagonalNormal)
    yield make("panel of spells", durations, durations_data(1500))


def make(name, run, args, guide=AutoNormal) -> Case:
    """A case with one of the factorised guides."""
    arrays = tuple(jnp.asarray(array) for array in args)
    draws = (NUM_DRAWS, NUM_DRAWS)
    return Case(name, guide.__name__, run, lambda: guide(run), arrays, elbo_samples=draws)


def slopes(group, x, y, num_groups=5000):
    mean = numpyro.sample("mean", dist.Normal(0, 5).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1).expand([2]).to_event(1))
    with numpyro.plate("groups", num_groups):
        a = numpyro.sample("a", dist.Normal(mean[0], spread[0]))
        b = numpyro.sample("b", dist.Normal(mean[1], spread[1]))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(a[group] + b[group] * x, noise), obs=y)


def slopes_data(groups, rows):
    rng = np.random.default_rng(0)
    group, x = rng.integers(0, groups, rows), rng.normal(size=rows).astype(np.float32)
    a, b = 2 + rng.normal(size=groups), -1 + 0.5 * rng.normal(size=groups)
    y = a[group] + b[group] * x + 0.7 * rng.normal(size=rows)
    return group.astype(np.int32), x, y.astype(np.float32)


def zero_inflated(group, x, y, num_groups=40):
    mean = numpyro.sample("mean", dist.Normal(0, 2))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    gate = numpyro.sample("gate", dist.Beta(2, 2))
    with numpyro.plate("groups", num_groups):
        a = numpyro.sample("a", dist.Normal(mean, spread))
    rate = jnp.exp(a[group] + slope * x)
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, rate), obs=y)


def zero_inflated_data(groups):
    rng = np.random.default_rng(1)
    group, x = rng.integers(0, groups, 2000), rng.normal(size=2000).astype(np.float32)
    rate = np.exp(1 + 0.5 * rng.normal(size=groups)[group] + 0.4 * x)
    y = rng.poisson(rate) * (rng.random(2000) > 0.3)
    return group.astype(np.int32), x, y.astype(np.int32)


def nested(region, city, exposure, y, num_regions=100, num_cities=2000):
    mean = numpyro.sample("mean", dist.Normal(0, 3))
    between = numpyro.sample("between", dist.HalfNormal(1))
    within = numpyro.sample("within", dist.HalfNormal(1))
    with numpyro.plate("regions", num_regions):
        of_region = numpyro.sample("of_region", dist.Normal(mean, between))
    with numpyro.plate("cities", num_cities):
        of_city = numpyro.sample("of_city", dist.Normal(of_region[region], within))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(of_city[city])), obs=y)


def nested_data(regions, cities):
    rng = np.random.default_rng(2)
    region = rng.integers(0, regions, cities)
    level = 1 + 0.5 * rng.normal(size=regions)[region] + 0.4 * rng.normal(size=cities)
    city = rng.integers(0, cities, 10_000)
    exposure = rng.uniform(0.5, 2.0, 10_000)
    y = rng.poisson(exposure * np.exp(level[city]))
    integers = lambda array: array.astype(np.int32)
    return integers(region), integers(city), exposure.astype(np.float32), integers(y)


def overdispersed(x, y):
    coefficients = numpyro.sample("coefficients", dist.Normal(0, 2).expand([9]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    with numpyro.plate("rows", y.shape[0]):
        effect = numpyro.sample("effect", dist.Normal(x @ coefficients, spread))
        numpyro.sample("y", dist.Poisson(jnp.exp(effect)), obs=y)


def overdispersed_data(rows):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, 9)).astype(np.float32)
    level = x @ (0.3 * rng.normal(size=9)) + 0.5 * rng.normal(size=rows)
    return x, rng.poisson(np.exp(level)).astype(np.int32)


def ordinal(person, x, y, num_persons=300):
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 2))
    base = dist.Normal(0, 3).expand([4]).to_event(1)
    ordered = dist.transforms.OrderedTransform()
    cuts = numpyro.sample("cuts", dist.TransformedDistribution(base, ordered))
    with numpyro.plate("persons", num_persons):
        level = numpyro.sample("level", dist.Normal(0, spread))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.OrderedLogistic(level[person] + slope * x, cuts), obs=y)


def ordinal_data(persons):
    rng = np.random.default_rng(4)
    person, x = rng.integers(0, persons, 3000), rng.normal(size=3000).astype(np.float32)
    level = rng.normal(size=persons)[person] + 0.7 * x + rng.logistic(size=3000)
    y = np.digitize(level, [-2.0, -0.5, 0.5, 2.0])
    return person.astype(np.int32), x, y.astype(np.int32)


def durations(firm, x, y, num_firms=1500):
    spread = numpyro.sample("spread", dist.HalfNormal(1))
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("firms", num_firms):
        frailty = numpyro.sample("frailty", dist.Normal(0, spread))
    with numpyro.plate("rows", y.shape[0]):
        scale = jnp.exp(frailty[firm] + x @ slopes)
        numpyro.sample("y", dist.Weibull(scale, shape), obs=y)


def durations_data(firms):
    rng = np.random.default_rng(5)
    firm, x = rng.integers(0, firms, 12_000), rng.normal(size=(12_000, 3)).astype(np.float32)
    scale = np.exp(0.5 * rng.normal(size=firms)[firm] + x @ np.array([0.5, -0.3, 0.2]))
    return firm.astype(np.int32), x, (scale * rng.weibull(1.4, 12_000)).astype(np.float32)
