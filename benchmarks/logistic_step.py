"""Microseconds per step on the logistic model: our gradient, our VPNG and NumPyro's SVI with Adam.

All three run the same model (Section 5.1), ten particles and Adam on top, inside one compiled scan;
ours take the bare step that `fit` runs between its examinations, and SVI's looks at nothing either.
The rounds are interleaved, and the median over rounds is printed as one JSON object.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal

from vpng import ELBO, Predictive, optimizers
from vpng.paper.experiments.logistic import LogisticConfig, make_data
from vpng.run.explosion import Explosions
from vpng.training import Batches, InMemory, init_state
from vpng.training.step import make_bare_step
from vpng.training.watched import Bare, bare_step

PARTICLES = 10


def ours(method: str, steps: int) -> Callable[[], None]:
    problem, split = make_data(LogisticConfig())
    data = InMemory.create(split.train)
    adam = optax.scale_by_adam()
    if method == "gradient":
        optimizer = optimizers.gradient(0.01, rule=adam)
    else:
        metric = Predictive(num_particles=PARTICLES)
        optimizer = optimizers.vpng(problem, 0.01, rule=adam, metric=metric)
    batches = Batches(len(data))
    rule = Explosions()
    step = bare_step(
        make_bare_step(problem, optimizer, ELBO(PARTICLES), batches), rule, problem.num_data
    )
    begin = init_state(jax.random.key(0), problem.init(jax.random.key(1), 5), optimizer, batches)
    state = Bare.of(begin, rule)
    run = jax.jit(lambda s, d: jax.lax.scan(lambda s, _: step(s, d), s, length=steps))
    return lambda: jax.block_until_ready(run(state, data))


def numpyro_adam(objective: type, steps: int) -> Callable[[], None]:
    _, split = make_data(LogisticConfig())

    def model(covariates: jax.Array, labels: jax.Array) -> None:
        prior = dist.Normal(jnp.zeros(covariates.shape[1]), 100.0).to_event(1)
        weights = numpyro.sample("weights", prior)
        with numpyro.plate("data", covariates.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=covariates @ weights), obs=labels)

    svi = SVI(model, AutoNormal(model), optax.adam(0.01), objective(num_particles=PARTICLES))
    state = svi.init(jax.random.key(0), *split.train)
    run = jax.jit(lambda s, x, y: jax.lax.scan(lambda s, _: svi.update(s, x, y), s, length=steps))
    return lambda: jax.block_until_ready(run(state, *split.train))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    contenders = {
        "vpng_gradient": ours("gradient", options.steps),
        "vpng": ours("vpng", options.steps),
        "numpyro_adam": numpyro_adam(Trace_ELBO, options.steps),
        "numpyro_adam_analytic_kl": numpyro_adam(TraceMeanField_ELBO, options.steps),
    }
    for run in contenders.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            times[name].append(1e6 * (time.perf_counter() - began) / options.steps)
    medians = {name: statistics.median(values) for name, values in times.items()}
    base = medians["numpyro_adam"]
    ratios = {name: value / base for name, value in medians.items()}
    print(json.dumps({"microseconds_per_step": medians, "ratio_to_numpyro_adam": ratios}, indent=1))


if __name__ == "__main__":
    main()
