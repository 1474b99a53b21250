"""Models whose latents all touch each other: regressions, Gaussian processes, factors, flows."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoIAFNormal, AutoMultivariateNormal

from large.groups import make
from zoo.case import Case


def cases() -> Iterator[Case]:
    """All of them."""
    yield make("softmax regression", softmax, softmax_data())
    yield make("horseshoe", horseshoe, horseshoe_data())
    yield make("200,000 rows", logistic, logistic_data())
    yield make("200,000 rows", logistic, logistic_data(), AutoMultivariateNormal)
    yield make("Gaussian process", process, process_data())
    yield make("survival by factor", survival, survival_data())
    yield make("survival by factor", survival, survival_data(), AutoMultivariateNormal)
    yield make("banana of 40", banana, (np.zeros(40, np.float32),), AutoIAFNormal)


def softmax(x, y):
    shape = (x.shape[1], 10)
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand(shape).to_event(2))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ weights), obs=y)


def softmax_data():
    rng = np.random.default_rng(11)
    x = np.concatenate([rng.normal(size=(3000, 64)), np.ones((3000, 1))], axis=1)
    logits = x @ (0.5 * rng.normal(size=(65, 10))) + rng.gumbel(size=(3000, 10))
    return x.astype(np.float32), np.argmax(logits, axis=1).astype(np.int32)


def horseshoe(x, y):
    overall = numpyro.sample("overall", dist.HalfCauchy(0.1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("columns", x.shape[1]):
        local = numpyro.sample("local", dist.HalfCauchy(1))
        raw = numpyro.sample("raw", dist.Normal(0, 1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ (raw * local * overall), noise), obs=y)


def horseshoe_data():
    rng = np.random.default_rng(12)
    x = rng.normal(size=(400, 199)).astype(np.float32)
    weights = np.where(np.arange(199) < 8, 1.5, 0.0)
    return x, (x @ weights + rng.normal(size=400)).astype(np.float32)


def logistic(x, y):
    weights = numpyro.sample("weights", dist.Normal(0, 2).expand([40]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def logistic_data():
    rng = np.random.default_rng(13)
    x = rng.normal(size=(200_000, 40)).astype(np.float32)
    logits = x @ (0.3 * rng.normal(size=40))
    return x, (rng.random(200_000) < 1 / (1 + np.exp(-logits))).astype(np.int32)


def process(x, y):
    scale = numpyro.sample("scale", dist.HalfNormal(2))
    length = numpyro.sample("length", dist.LogNormal(0, 0.5))
    distances = (x[:, None] - x) ** 2
    kernel = scale**2 * jnp.exp(-0.5 * distances / length**2) + 1e-4 * jnp.eye(x.size)
    raw = numpyro.sample("raw", dist.Normal(0, 1).expand([x.size]).to_event(1))
    logits = jnp.linalg.cholesky(kernel) @ raw
    numpyro.sample("y", dist.Bernoulli(logits=logits).to_event(1), obs=y)


def process_data():
    rng = np.random.default_rng(14)
    x = np.sort(rng.uniform(-5, 5, 150)).astype(np.float32)
    y = rng.random(150) < 1 / (1 + np.exp(-3 * np.sin(x)))
    return x, y.astype(np.int32)


def survival(x, time, seen):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([50]).to_event(1))
    shape = numpyro.sample("shape", dist.LogNormal(0, 0.5))
    hazard = shape * (jnp.log(time) - x @ weights)
    density = jnp.log(shape) + hazard - jnp.log(time)
    numpyro.factor("survival", jnp.sum(jnp.where(seen, density, 0.0) - jnp.exp(hazard)))


def survival_data():
    rng = np.random.default_rng(15)
    x = rng.normal(size=(3000, 50)).astype(np.float32)
    time = np.exp(x @ (0.2 * rng.normal(size=50))) * rng.weibull(1.5, 3000)
    seen = time < 2.0
    return x, np.minimum(time, 2.0).astype(np.float32), seen


def banana(zeros):
    first = numpyro.sample("first", dist.Normal(0, 1).expand([20]).to_event(1))
    bent = numpyro.sample("bent", dist.Normal(first**2, 0.3).to_event(1))
    total = jnp.concatenate([first, bent])
    numpyro.sample("y", dist.StudentT(5.0, total, 1.0).to_event(1), obs=zeros)
