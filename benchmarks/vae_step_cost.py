"""What an iteration of each method costs in the paper's autoencoder experiment, in turns.

The paper's networks (784-200-200-2x100, 100-200-200-784), batches of 600 and ten particles on
made-up binary images, with the optimizers of `vpng reproduce vae`. The loops advance by one chunk
after the other, the order alternating; a chunk has a whole period of the inverses. Processor
seconds are counted, by which other work on the machine weighs less. Printed are, as JSON, the
median of milliseconds a step and of the ratios to the gradient, with 95 % intervals.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from vpng import ELBO
from vpng.paper.experiments.networks import Factored, network_optimizer
from vpng.plot.methods import Method
from vpng.problems import paper_vae
from vpng.training import Loop

NUM_DATA = 6000
METHODS = (Method.GRADIENT, Method.NATURAL_GRADIENT, Method.VPNG_BLOCK, Method.VPNG)


def images() -> jax.Array:
    """Blobs: as bright as MNIST, about a fifth of the pixels."""
    generator = np.random.default_rng(0)
    prototypes = generator.random((10, 784)) < 0.2
    flips = generator.random((NUM_DATA, 784)) < 0.05
    return jnp.asarray(prototypes[np.arange(NUM_DATA) % 10] ^ flips, jnp.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=600)
    parser.add_argument("--particles", type=int, default=10)
    parser.add_argument("--statistics-period", type=int, default=Factored().statistics_period)
    parser.add_argument("--inverse-period", type=int, default=Factored().inverse_period)
    parser.add_argument("--methods", nargs="+", type=Method, default=METHODS)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    problem, params, data = paper_vae(jax.random.key(0), images())
    factored = Factored(
        statistics_period=options.statistics_period, inverse_period=options.inverse_period
    )
    chunk = options.inverse_period
    loops, states = {}, {}
    for method in options.methods:
        batch = data[: options.batch_size]
        optimizer = network_optimizer(factored, method, problem, params, batch, 0.01, rmsprop=True)
        loops[method] = Loop(
            problem,
            params,
            data,
            optimizer,
            objective=ELBO(options.particles),
            batch_size=options.batch_size,
            record_every=chunk,
        )
        states[method] = loops[method].init(params, jax.random.key(1))
    spent: dict[Method, list[float]] = {method: [] for method in options.methods}
    for turn in range(-1, options.rounds):  # the first compiles what is compiled late
        for method in options.methods[:: 1 if turn % 2 else -1]:
            began = time.process_time()
            states[method] = loops[method].run(states[method], chunk, progress=False).state
            if turn >= 0:
                spent[method].append((time.process_time() - began) / chunk)
    generator = np.random.default_rng(0)
    base = np.array(spent[options.methods[0]])
    found = {}
    for method, seconds in spent.items():
        ratios = np.array(seconds) / base
        again = np.median(generator.choice(ratios, (2000, options.rounds)), axis=1)
        found[method.value] = {
            "processor_milliseconds": 1e3 * float(np.median(seconds)),
            "ratio": float(np.median(ratios)),
            "interval": np.quantile(again, [0.025, 0.975]).tolist(),
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
