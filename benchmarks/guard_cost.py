"""What the numerical guard costs: steps of an autoencoder with it and without it, in turns.

One architecture of MNIST's size (784-200-200-2x100, 100-200-200-784) on made-up binary images. Both
loops advance by one chunk after the other, the order alternating, so that a noisy machine is noisy
for both. Beside the guard's own ratio stand that of a guard which does not look for explosions, and
that of steps which are all examined, as they are after the first rejection. One JSON object is
printed.
"""

import argparse
import json
import sys
import time
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vpng import ELBO, optimizers
from vpng.problems import mlp_vae
from vpng.problems.autoencoder import Setup
from vpng.training import Guard, Loop, TrainState

NUM_DATA = 6000


class Contender(NamedTuple):
    loop: Loop
    state: TrainState


def images() -> jax.Array:
    """Blobs: as bright as MNIST, about a fifth of the pixels."""
    generator = np.random.default_rng(0)
    prototypes = generator.random((10, 784)) < 0.2
    flips = generator.random((NUM_DATA, 784)) < 0.05
    return jnp.asarray(prototypes[np.arange(NUM_DATA) % 10] ^ flips, jnp.float32)


def optimizer_of(name: str, setup: Setup, batch_size: int) -> optax.GradientTransformation:
    problem, params, data = setup
    if name == "adam":
        return optimizers.gradient(1e-3, rule=optax.scale_by_adam())
    return optimizers.network_vpng(problem, params, data, batch_size=batch_size)


def measure(name: str, setup: Setup, batch_size: int, chunk: int, rounds: int) -> dict:
    """Milliseconds a step, and the ratios to steps without a guard."""
    problem, params, data = setup
    optimizer = optimizer_of(name, setup, batch_size)

    def contender(guard: Guard | None, *, examined: bool) -> Contender:
        loop = Loop(
            problem,
            params,
            data,
            optimizer,
            objective=ELBO(1),
            batch_size=batch_size,
            record_every=chunk,
            guard=guard,
        )
        state = loop.init(params, jax.random.key(1))
        # A run that has dropped a step examines all that follow.
        return Contender(loop, state._replace(rejected=jnp.int32(1)) if examined else state)

    contenders = {
        "none": contender(None, examined=False),
        "finite": contender(Guard(explosions=None), examined=False),
        "guard": contender(Guard(), examined=False),
        "examined": contender(Guard(), examined=True),
    }
    seconds: dict[str, list[float]] = {which: [] for which in contenders}
    for turn in range(-1, rounds):  # the first one compiles what is compiled late, and is not kept
        for which in list(contenders)[:: 1 if turn % 2 else -1]:
            loop, state = contenders[which]
            result = loop.run(state, chunk, progress=False)
            contenders[which] = Contender(loop, result.state)
            if turn >= 0:
                seconds[which].append(result.history.records[-1].seconds / chunk)
    base = np.array(seconds["none"])
    found: dict[str, object] = {"milliseconds": 1e3 * float(np.median(base))}
    generator = np.random.default_rng(0)
    for which in ("finite", "guard", "examined"):
        ratios = np.array(seconds[which]) / base
        again = np.median(generator.choice(ratios, (2000, rounds)), axis=1)
        found[which] = {
            "ratio": float(np.median(ratios)),
            "interval": np.quantile(again, [0.025, 0.975]).tolist(),
        }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[256, 600])
    parser.add_argument("--optimizers", nargs="+", default=["adam", "network_vpng"])
    parser.add_argument("--chunk", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    setup = mlp_vae(jax.random.key(0), images(), latent_dim=100)
    found = {}
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in options.optimizers:
            for size in options.batch_sizes:
                key = f"{name}, batch {size}"
                found[key] = measure(name, setup, size, options.chunk, options.rounds)
                elapsed = time.perf_counter() - began
                print(f"[{elapsed:5.0f} s] {key}: {found[key]}", file=sys.stderr, flush=True)
    print(json.dumps({"chunk": options.chunk, "rounds": options.rounds, "steps": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
