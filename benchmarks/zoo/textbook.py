"""Models from textbooks with their own data, in the units they come in; nothing was tuned on them.

From the examples of BUGS (Spiegelhalter et al.), but for the space shuttle (Dalal et al., 1989).
"""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

from zoo.case import Case, normal_guides


def seeds(seed: jax.Array, extract: jax.Array, numbers: jax.Array, germinated: jax.Array) -> None:
    """A factorial design with a random effect for every plate of seeds."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 10.0).expand([4]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("plates", numbers.size):
        effect = numpyro.sample("effect", dist.Normal(0.0, spread))
        fixed = weights[0] + weights[1] * seed + weights[2] * extract + weights[3] * seed * extract
        rate = dist.Binomial(numbers, logits=fixed + effect)
        numpyro.sample("germinated", rate, obs=germinated)


def pumps(hours: jax.Array, failures: jax.Array) -> None:
    """Failures of pumps in a power plant."""
    shape = numpyro.sample("shape", dist.Exponential(1.0))
    rate = numpyro.sample("rate", dist.Gamma(0.1, 1.0))
    with numpyro.plate("pumps", hours.size):
        hazard = numpyro.sample("hazard", dist.Gamma(shape, rate))
        numpyro.sample("failures", dist.Poisson(hazard * hours), obs=failures)


def dugongs(age: jax.Array, length: jax.Array) -> None:
    """Growth that is not linear."""
    limit = numpyro.sample("limit", dist.Normal(0.0, 10.0))
    missing = numpyro.sample("missing", dist.HalfNormal(10.0))
    rate = numpyro.sample("rate", dist.Beta(7.0, 7.0 / 3.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    with numpyro.plate("dugongs", age.size):
        numpyro.sample("length", dist.Normal(limit - missing * rate**age, noise), obs=length)


def shuttle(temperature: jax.Array, damaged: jax.Array) -> None:
    """Damage of O-rings by temperature, in degrees Fahrenheit as reported."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 30.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    logits = intercept + slope * temperature
    numpyro.sample("damaged", dist.Bernoulli(logits=logits).to_event(1), obs=damaged)


def stacks(conditions: jax.Array, loss: jax.Array) -> None:
    """Robust regression of stack loss on three covariates in raw units."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 100.0))
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(10.0))
    mean = intercept + conditions @ slopes
    numpyro.sample("loss", dist.StudentT(4.0, mean, noise).to_event(1), obs=loss)


def surgical(operations: jax.Array, deaths: jax.Array) -> None:
    """Mortality in twelve hospitals, some with few operations."""
    centre = numpyro.sample("centre", dist.Normal(0.0, 10.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("hospitals", operations.size):
        logit = numpyro.sample("logit", dist.Normal(centre, spread))
        numpyro.sample("deaths", dist.Binomial(operations, logits=logit), obs=deaths)


def beetles(dose: jax.Array, numbers: jax.Array, killed: jax.Array) -> None:
    """Dose and response, the dose not centred: intercept and slope are nearly one direction."""
    intercept = numpyro.sample("intercept", dist.Normal(0.0, 100.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 100.0))
    rate = dist.Binomial(numbers, logits=intercept + slope * dose).to_event(1)
    numpyro.sample("killed", rate, obs=killed)


def _seeds_data() -> tuple:
    numbers = "39 62 81 51 39 6 74 72 51 79 13 16 30 28 45 4 12 41 30 51 7"
    germinated = "10 23 23 26 17 5 53 55 32 46 10 8 10 8 23 0 3 22 15 32 3"
    seed = np.repeat([0.0, 1.0], [11, 10])
    extract = np.concatenate([np.repeat([0.0, 1.0], [5, 6]), np.repeat([0.0, 1.0], [5, 5])])
    return seed, extract, _numbers(numbers), _numbers(germinated)


def _dugongs_data() -> tuple:
    age = (
        "1 1.5 1.5 1.5 2.5 4 5 5 7 8 8.5 9 9.5 9.5 10 12 12 13 13 14.5 15.5 15.5 16.5 17 22.5 29 "
        "31.5"
    )
    length = (
        "1.80 1.85 1.87 1.77 2.02 2.27 2.15 2.26 2.47 2.19 2.26 2.40 2.39 2.41 2.50 2.32 2.32 2.43 "
        "2.47 2.56 2.65 2.47 2.64 2.56 2.70 2.72 2.57"
    )
    return _numbers(age), _numbers(length)


def _shuttle_data() -> tuple:
    temperature = "66 70 69 68 67 72 73 70 57 63 70 78 67 53 67 75 70 81 76 79 75 76 58"
    damaged = "0 1 0 0 0 0 0 0 1 1 1 0 0 1 0 0 0 0 0 0 1 0 1"
    return _numbers(temperature), _numbers(damaged)


def _stacks_data() -> tuple:
    air = "80 80 75 62 62 62 62 62 58 58 58 58 58 58 50 50 50 50 50 56 70"
    water = "27 27 25 24 22 23 24 24 23 18 18 17 18 19 18 18 19 19 20 20 20"
    acid = "89 88 90 87 87 87 93 93 87 80 89 88 82 93 89 86 72 79 80 82 91"
    loss = "42 37 37 28 18 18 19 20 15 14 14 13 11 12 8 7 8 8 9 15 15"
    return np.stack([_numbers(air), _numbers(water), _numbers(acid)], axis=1), _numbers(loss)


def _numbers(text: str) -> np.ndarray:
    return np.asarray(text.split(), np.float32)


def cases() -> tuple[Case, ...]:
    """Each with both guides; counts are floating point numbers, which all distributions take."""
    hours = "94.3 15.7 62.9 126 5.24 31.4 1.05 1.05 2.1 10.5"
    operations = "47 148 119 810 211 196 148 215 207 97 256 360"
    deaths = "0 18 8 46 8 13 9 31 14 8 29 24"
    dose = "1.6907 1.7242 1.7552 1.7842 1.8113 1.8369 1.8610 1.8839"
    beetles_data = _numbers(dose), _numbers("59 60 62 56 63 59 62 60")
    return (
        *normal_guides("seeds", seeds, _seeds_data()),
        *normal_guides("pumps", pumps, (_numbers(hours), _numbers("5 1 5 14 3 19 1 1 4 22"))),
        *normal_guides("dugongs", dugongs, _dugongs_data()),
        *normal_guides("shuttle", shuttle, _shuttle_data()),
        *normal_guides("stacks", stacks, _stacks_data()),
        *normal_guides("surgical", surgical, (_numbers(operations), _numbers(deaths))),
        *normal_guides("beetles", beetles, (*beetles_data, _numbers("6 13 18 28 52 53 61 60"))),
    )


TEXTBOOK = cases()
"""Beside `zoo.CASES`, on which constants were set."""

__all__ = ["TEXTBOOK"]
