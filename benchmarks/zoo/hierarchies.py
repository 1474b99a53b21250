"""Latents that share a prior with unknown parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from zoo.case import Case, normal_guides

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
NUM_GROUPS = 20
NUM_MANY_GROUPS = 2000


def schools_centred(effects: jax.Array, errors: jax.Array) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", effects.size):
        true = numpyro.sample("true", dist.Normal(mean, spread))
        numpyro.sample("effect", dist.Normal(true, errors), obs=effects)


def schools_non_centred(effects: jax.Array, errors: jax.Array) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", effects.size):
        standard = numpyro.sample("standard", dist.Normal(0.0, 1.0))
        numpyro.sample("effect", dist.Normal(mean + spread * standard, errors), obs=effects)


def varying_slopes(groups: jax.Array, covariate: jax.Array, responses: jax.Array) -> None:
    intercept_mean = numpyro.sample("intercept_mean", dist.Normal(0.0, 10.0))
    slope_mean = numpyro.sample("slope_mean", dist.Normal(0.0, 10.0))
    intercept_spread = numpyro.sample("intercept_spread", dist.HalfNormal(5.0))
    slope_spread = numpyro.sample("slope_spread", dist.HalfNormal(5.0))
    noise = numpyro.sample("noise", dist.HalfNormal(5.0))
    with numpyro.plate("groups", NUM_GROUPS):
        intercepts = numpyro.sample("intercepts", dist.Normal(intercept_mean, intercept_spread))
        slopes = numpyro.sample("slopes", dist.Normal(slope_mean, slope_spread))
    with numpyro.plate("data", covariate.size):
        mean = intercepts[groups] + slopes[groups] * covariate
        numpyro.sample("response", dist.Normal(mean, noise), obs=responses)


def many_groups(groups: jax.Array, covariate: jax.Array, counts: jax.Array) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    spread = numpyro.sample("spread", dist.HalfNormal(2.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 5.0))
    with numpyro.plate("groups", NUM_MANY_GROUPS):
        intercepts = numpyro.sample("intercepts", dist.Normal(mean, spread))
    with numpyro.plate("data", covariate.size):
        rate = jnp.exp(intercepts[groups] + slope * covariate)
        numpyro.sample("count", dist.Poisson(rate), obs=counts)


def cases() -> tuple[Case, ...]:
    rng = np.random.default_rng(1)
    groups = rng.integers(0, NUM_GROUPS, size=400)
    covariate = rng.normal(size=400)
    intercepts = 1.0 + rng.normal(size=NUM_GROUPS)
    slopes = -0.5 + 0.7 * rng.normal(size=NUM_GROUPS)
    responses = intercepts[groups] + slopes[groups] * covariate + 0.5 * rng.normal(size=400)
    own = rng.integers(0, NUM_MANY_GROUPS, size=10_000)
    other = rng.normal(size=10_000)
    rates = np.exp(0.5 + 0.35 * rng.normal(size=NUM_MANY_GROUPS)[own] + 0.3 * other)
    return (
        *normal_guides("eight schools, centred", schools_centred, (EFFECTS, ERRORS)),
        *normal_guides("eight schools, non-centred", schools_non_centred, (EFFECTS, ERRORS)),
        *normal_guides("varying slopes", varying_slopes, (groups, covariate, responses)),
        *normal_guides("2,000 groups", many_groups, (own, other, rng.poisson(rates)), full=False),
    )
