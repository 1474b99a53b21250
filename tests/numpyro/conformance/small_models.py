"""Models of one latent whose posteriors are known."""

import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints


def normal_mean(y):
    """Posterior of five data: Normal(sum(y) / 6, 1 / sqrt(6))."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def normal_guide(y):
    location = numpyro.param("location", 0.0)
    scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
    numpyro.sample("mean", dist.Normal(location, scale))


def poisson_rate(counts):
    """Posterior: Gamma(2 + sum, 1 + number)."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(counts)):
        numpyro.sample("count", dist.Poisson(rate), obs=counts)


def gamma_guide(counts):
    shape = numpyro.param("shape", 2.0, constraint=constraints.positive)
    rate = numpyro.param("inverse_scale", 1.0, constraint=constraints.positive)
    numpyro.sample("rate", dist.Gamma(shape, rate))


def coin(tosses):
    """Posterior: Beta(10 + heads, 10 + tails)."""
    fairness = numpyro.sample("fairness", dist.Beta(10.0, 10.0))
    with numpyro.plate("data", len(tosses)):
        numpyro.sample("toss", dist.Bernoulli(fairness), obs=tosses)


def beta_guide(tosses):
    heads = numpyro.param("heads", 15.0, constraint=constraints.positive)
    tails = numpyro.param("tails", 15.0, constraint=constraints.positive)
    numpyro.sample("fairness", dist.Beta(heads, tails))
