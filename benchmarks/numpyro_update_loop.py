"""A loop of one's own over `svi.update`, with other data in every step, beside `SVI.run`.

The loop is the one of the documentation: a jitted update, and batches from outside. Runs and loops
take turns in one process, and the figure is the median of their seconds a step, without compiling.
"""

import argparse
import statistics
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import autoguide

from vpng.numpyro import SVI

KEY = jax.random.key(0)


def model(x, y):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def seconds_of_loop(svi, state, batches, steps):
    update = svi.compiled
    began = time.perf_counter()
    for step in range(steps):
        state, loss = update(state, *batches[step % len(batches)])
    jax.block_until_ready((state, loss))
    return (time.perf_counter() - began) / steps


def seconds_of_run(svi, state, batch, steps):
    result = svi.run(KEY, steps, *batch, init_state=state, progress_bar=False)
    return result.history.records[-1].seconds / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    shape = lambda text: tuple(map(int, text.split("x")))
    parser.add_argument(
        "--shapes", nargs="+", type=shape, default=[(100, 5), (1000, 20), (5000, 20)]
    )
    options = parser.parse_args()
    draw = np.random.default_rng(0)
    print("rows | columns | guide | loop, microseconds a step | run | ratio")
    for rows, columns in options.shapes:
        for kind in (autoguide.AutoNormal, autoguide.AutoMultivariateNormal):
            batches = [
                (draw.normal(size=(rows, columns)).astype(np.float32), draw.integers(0, 2, rows))
                for _ in range(5)
            ]
            svi = SVI(model, kind(model))
            state = svi.init(KEY, *batches[0])
            svi.compiled = jax.jit(svi.update)
            loops, runs = [], []
            for _ in range(options.rounds + 1):
                loops.append(seconds_of_loop(svi, state, batches, options.steps))
                runs.append(seconds_of_run(svi, state, batches[0], options.steps))
            loop, run = (1e6 * statistics.median(each[1:]) for each in (loops, runs))
            print(
                f"{rows} | {columns} | {kind.__name__} | {loop:.0f} | {run:.0f} | {loop / run:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
