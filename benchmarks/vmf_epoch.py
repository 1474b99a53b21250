"""An epoch at the scale of MovieLens 20M: VPNG beside the gradient, memory, the input pipeline.

The matrix is made up in the shape of MovieLens 20M and prepared as in the paper; batches of 3,000
users. Epochs of the contenders take turns in small slices, so that a noisy machine is noisy for
all; times are given as processor seconds and as wall-clock seconds. The share of the input pipeline
is the time to shuffle, to take the batches of an epoch and to make numbers of their bytes, compiled
alone. One JSON object is printed.
"""

import argparse
import json
import resource
import statistics
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vpng import ELBO, optimizers
from vpng.kronecker import FactoredTikhonov
from vpng.paper.datasets import (
    EDITIONS,
    MOVIELENS_20M,
    rating_matrix,
    split_users,
    synthetic_ratings,
)
from vpng.paper.experiments.networks import Factored, eigenbasis_direction, network_optimizer
from vpng.plot.methods import Method
from vpng.problems import MatrixFactorization, counted, leading_directions
from vpng.training import Batches, Loop
from vpng.training.data import as_data

BATCH = 3000
SLICE = 5


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def input_only(data, batches: Batches, steps: int):
    """The part of an epoch that only moves data, compiled."""

    def epoch(data, key):
        def body(step, carry):
            order, total = carry
            batch, order = batches.next(data, key, step, order)
            seen = jnp.log1p(batch.counts.astype(jnp.float32))
            return order, total + jnp.sum(seen[:, 0]) + jnp.sum(batch.log_factorials)

        return jax.lax.fori_loop(0, steps, body, (batches.init(), jnp.zeros(())))

    return jax.jit(epoch).lower(data, jax.random.key(0)).compile()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--methods", default="vpng_eigenbasis,vpng_block,vpng")
    parser.add_argument("--matrix", default=None, help="a .npy file of counts, to skip making them")
    options = parser.parse_args()
    if options.matrix is None:
        say("making ratings")
        ratings = synthetic_ratings(MOVIELENS_20M)
        counts = rating_matrix(ratings, min_ratings=EDITIONS["ml-20m"].min_ratings).counts
        del ratings
    else:
        counts = np.load(options.matrix)
    made = megabytes()
    split = split_users(counts)
    shape = counts.shape
    del counts
    problem = MatrixFactorization(len(split.train), shape[1], 100)
    parameters = problem.init(jax.random.key(0))
    data = as_data(counted(split.train))
    del split
    few = data.take(jnp.arange(BATCH))
    factored = Factored(factor_damping=FactoredTikhonov(), inverse_period=20)
    contenders = {"gradient": optimizers.gradient(0.003, rule=optax.scale_by_adam())}
    for name in options.methods.split(","):
        if name == Method.VPNG_EIGENBASIS:
            most = leading_directions(problem.num_data, problem.num_items)
            direction = eigenbasis_direction(problem, parameters, few, few, most)
            contenders[name] = optax.chain(direction, optax.scale_by_learning_rate(0.003))
        else:
            contenders[name] = network_optimizer(
                factored, Method(name), problem, parameters, few, 0.003, False
            )
    loops = {}
    for name, optimizer in contenders.items():
        say(f"compiling {name}")
        loops[name] = Loop(
            problem,
            parameters,
            data,
            optimizer,
            objective=ELBO(1),
            batch_size=BATCH,
            record_every=SLICE,
        )
    batches = Batches(len(data), BATCH)
    steps = options.epochs * batches.per_epoch
    say(f"{steps} steps each")
    states = {name: loop.init(parameters, jax.random.key(1)) for name, loop in loops.items()}
    wall, cpu = (dict.fromkeys(loops, 0.0) for _ in range(2))
    peak = 0.0
    for done in range(0, steps, SLICE):
        for name, loop in loops.items():
            clock, began = time.process_time(), time.perf_counter()
            result = loop.run(states[name], min(SLICE, steps - done), progress=False)
            cpu[name] += time.process_time() - clock
            wall[name] += time.perf_counter() - began
            states[name] = result.state
            peak = max(peak, resident())
    pipeline = input_only(data, batches, batches.per_epoch)
    moved = []
    for _ in range(3):
        clock = time.process_time()
        jax.block_until_ready(pipeline(data, jax.random.key(2)))
        moved.append(time.process_time() - clock)
    report = {
        "users": shape[0],
        "movies": shape[1],
        "matrix_megabytes": shape[0] * shape[1] / 1e6,
        "steps": steps,
        "processor_seconds_per_epoch": {n: t / options.epochs for n, t in cpu.items()},
        "seconds_per_epoch": {n: t / options.epochs for n, t in wall.items()},
        "epoch_ratio": {n: t / cpu["gradient"] for n, t in cpu.items()},
        "input_share_of_gradient": statistics.median(moved) * options.epochs / cpu["gradient"],
        "peak_megabytes_while_training": peak,
        "peak_megabytes_while_making_the_ratings": made,
        "peak_megabytes": megabytes(),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
