"""How soon does VPNG reach the gradient's final test ELBO in matrix factorisation?

The made-up matrix of 20,000 users and 500 movies, a tenth of the users for the test, batches of
1,000 and one particle. Every method has the same grid of steps; all points take turns in slices of
20 steps, and the clock is the processor's, so that a noisy machine is noisy for all. Of each method
the point with the best train ELBO at the end of its time counts. One JSON object is printed.
"""

import argparse
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vpng import ELBO, optimizers
from vpng.datasets import rating_matrix, split_users, synthetic_ratings
from vpng.experiments.methods import Method
from vpng.experiments.networks import Factored, eigenbasis_direction, network_optimizer
from vpng.kronecker import FactoredTikhonov
from vpng.problems import MatrixFactorization, counted
from vpng.training import Loop
from vpng.training.mean_elbo import mean_elbo

BATCH, SLICE = 1000, 20


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of the processor, for each")
    parser.add_argument("--rates", default="0.001,0.003,0.01,0.03")
    parser.add_argument("--methods", default="vpng_eigenbasis,vpng_block,natural_gradient")
    options = parser.parse_args()
    rates = [float(rate) for rate in options.rates.split(",")]

    split = split_users(rating_matrix(synthetic_ratings()).counts)
    problem = MatrixFactorization(len(split.train), split.train.shape[1], 100)
    parameters = problem.init(jax.random.key(0))
    data, size = counted(split.train), len(split.test)
    part = lambda count: jax.tree.map(lambda leaf: leaf[:count], data)
    metrics = {
        "test_elbo": mean_elbo(problem, counted(split.test), 2),
        "train_elbo": mean_elbo(problem, part(size), 2),
    }

    def chain(method: Method):
        if method is Method.VPNG_EIGENBASIS:
            direction = eigenbasis_direction(problem, parameters, part(BATCH), part(10_000))
            return lambda learning_rate: optax.chain(
                direction, optax.scale_by_learning_rate(learning_rate)
            )
        if method is Method.GRADIENT:
            adam = optax.scale_by_adam()
            return lambda learning_rate: optimizers.gradient(learning_rate, rule=adam)
        factored = Factored(factor_damping=FactoredTikhonov(), inverse_period=20)
        return lambda learning_rate: network_optimizer(
            factored, method, problem, parameters, part(BATCH), learning_rate, False
        )

    runs = {}
    for name in ("gradient", *options.methods.split(",")):
        say(f"compiling {name}")
        loop = Loop(
            problem,
            parameters,
            data,
            optax.inject_hyperparams(chain(Method(name)))(learning_rate=1.0),
            objective=ELBO(1),
            batch_size=BATCH,
            record_every=SLICE,
            metrics=metrics,
        )
        for rate in rates:
            state = loop.init(parameters, jax.random.key(1))
            chosen = state.optimizer.hyperparams
            chosen["learning_rate"] = jnp.full_like(chosen["learning_rate"], rate)
            runs[name, rate] = {"loop": loop, "state": state, "seconds": 0.0, "curve": []}
    going = list(runs)
    while going:
        for key in list(going):
            run = runs[key]
            evaluated = time.process_time()
            run["loop"]._measure(run["state"])
            evaluated = time.process_time() - evaluated
            began = time.process_time()
            result = run["loop"].run(run["state"], SLICE, progress=False)
            # The slice evaluates once; an evaluation alone costs what was just measured.
            run["seconds"] += max(time.process_time() - began - evaluated, 0.0)
            record = result.history.records[-1]
            run["state"] = result.state
            run["curve"].append((run["seconds"], record.iteration, *record.metrics.values()))
            lost = not np.isfinite(record.metrics["train_elbo"])
            if run["seconds"] >= options.seconds or lost:
                going.remove(key)
                say(f"{key}: {run['curve'][-1]}")

    def end(key) -> float:
        value = runs[key]["curve"][-1][3]
        return value if np.isfinite(value) else -np.inf

    best = {
        name: max((key for key in runs if key[0] == name), key=end)
        for name in dict.fromkeys(key[0] for key in runs)
    }
    base = np.array(runs[best["gradient"]]["curve"])
    report = {"processor_seconds": options.seconds, "methods": {}}
    for name, key in best.items():
        curve = np.array(runs[key]["curve"])
        reached = curve[:, 2] >= base[-1, 2]
        when = float(curve[reached.argmax(), 0]) if reached.any() else None
        report["methods"][name] = {
            "learning_rate": key[1],
            "milliseconds_per_step": 1e3 * curve[-1, 0] / curve[-1, 1],
            "final_test_elbo": float(curve[-1, 2]),
            "best_test_elbo": float(np.nanmax(curve[:, 2])),
            "final_train_elbo": float(curve[-1, 3]),
            "seconds_to_gradient_final": when,
            "times_faster": None if when is None else float(base[-1, 0]) / when,
            "curve": curve.tolist(),
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
