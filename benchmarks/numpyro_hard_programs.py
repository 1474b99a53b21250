"""Programs that were hard: the final ELBO beside NumPyro's Adam at the best of three rates.

Both take as many steps with as many particles, and both final ELBOs are means over the same draws.
The seconds are those of the processor, everything that is compiled included. A table goes to the
standard output.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers, infer
from numpyro.infer import Trace_ELBO, TraceGraph_ELBO, autoguide

from vpng.numpyro import SVI

RATES = (0.003, 0.01, 0.05)
DRAWS = 2000

_draw = np.random.default_rng(0)
X = jnp.asarray(_draw.normal(size=(200, 4)), jnp.float32)
LABELS = jnp.asarray(_draw.random(200) < 1 / (1 + np.exp(-X @ np.array([1.0, -2.0, 0.5, 0.0]))))
LABELS = LABELS.astype(jnp.float32)
LEVELS = jnp.asarray(_draw.normal(1.0, 1.1, size=8), jnp.float32)


def logistic():
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with numpyro.plate("data", 200):
        numpyro.sample("label", dist.Bernoulli(logits=X @ weights), obs=LABELS)


def flow():
    return logistic, autoguide.AutoIAFNormal(logistic), Trace_ELBO(10)


def surrogate():
    def likelihood():
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        counts = numpyro.param("counts", 5.0 * jnp.ones(20), constraint=dist.constraints.positive)
        with numpyro.plate("some", 20), handlers.scale(scale=counts):
            numpyro.sample("label", dist.Bernoulli(logits=X[:20] @ weights), obs=LABELS[:20])

    guide = autoguide.AutoSurrogateLikelihoodDAIS(logistic, likelihood)
    return logistic, guide, Trace_ELBO(10)


def semi():
    def everywhere():
        return numpyro.sample("theta", dist.Normal(0.0, 1.0))

    def local(theta):
        with numpyro.plate("data", 8, subsample_size=2) as rows:
            tau = numpyro.sample("tau", dist.Gamma(5.0, 5.0))
            numpyro.sample("y", dist.Normal(theta, tau), obs=LEVELS[rows])

    def model():
        local(everywhere())

    guide = autoguide.AutoSemiDAIS(model, local, autoguide.AutoNormal(everywhere))
    return model, guide, Trace_ELBO(10)


def dependent_support():
    def model():
        widest = numpyro.sample("widest", dist.LogNormal(0.5, 0.5))
        place = numpyro.sample("place", dist.Uniform(0.0, widest))
        with numpyro.plate("data", 8):
            numpyro.sample("y", dist.Normal(place, 0.5), obs=LEVELS)

    return model, autoguide.AutoNormal(model), Trace_ELBO(10)


def gamma():
    counts = jnp.array([3.0, 2.0, 5.0, 4.0, 1.0])

    def model():
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        with numpyro.plate("data", 5):
            numpyro.sample("count", dist.Poisson(rate), obs=counts)

    def guide():
        shape = numpyro.param("shape", 2.0, constraint=dist.constraints.positive)
        rate = numpyro.param("inverse_scale", 1.0, constraint=dist.constraints.positive)
        numpyro.sample("rate", dist.Gamma(shape, rate))

    return model, guide, TraceGraph_ELBO(10)


def beta():
    def model():
        fairness = numpyro.sample("fairness", dist.Beta(10.0, 10.0))
        with numpyro.plate("data", 10):
            numpyro.sample("toss", dist.Bernoulli(fairness), obs=jnp.arange(10) < 6)

    def guide():
        heads = numpyro.param("heads", 15.0, constraint=dist.constraints.positive)
        tails = numpyro.param("tails", 15.0, constraint=dist.constraints.positive)
        numpyro.sample("fairness", dist.Beta(heads, tails))

    return model, guide, TraceGraph_ELBO(10)


CASES = {
    "AutoIAFNormal, logistic": flow,
    "AutoSurrogateLikelihoodDAIS": surrogate,
    "AutoSemiDAIS": semi,
    "dependent support": dependent_support,
    "TraceGraph, gamma": gamma,
    "TraceGraph, beta": beta,
}


def final(make: Callable[..., infer.SVI], case: Callable, steps: int) -> tuple[float, float]:
    """The ELBO after so many steps, and the seconds that they took."""
    model, guide, loss = case()
    svi = make(model, guide, loss)
    began = time.process_time()
    result = svi.run(jax.random.key(1), steps, progress_bar=False)
    jax.block_until_ready(result.params)
    seconds = time.process_time() - began
    one = lambda key: Trace_ELBO().loss(key, result.params, model, guide)
    losses = jax.lax.map(one, jax.random.split(jax.random.key(2), DRAWS), batch_size=100)
    return -float(jnp.mean(losses)), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    print("case | ours | seconds | Adam's best | seconds of its run | rates")
    for name, case in CASES.items():
        if options.cases and not any(part in name for part in options.cases):
            continue
        ours = final(lambda model, guide, loss: SVI(model, guide, loss=loss), case, options.steps)
        adams = {
            rate: final(
                lambda model, guide, loss, rate=rate: infer.SVI(
                    model, guide, numpyro.optim.Adam(rate), loss
                ),
                case,
                options.steps,
            )
            for rate in RATES
        }
        best = max(adams.values())
        rates = ", ".join(f"{rate:g}: {elbo:.2f}" for rate, (elbo, _) in adams.items())
        print(f"{name} | {ours[0]:.2f} | {ours[1]:.1f} | {best[0]:.2f} | {best[1]:.1f} | {rates}")


if __name__ == "__main__":
    main()
