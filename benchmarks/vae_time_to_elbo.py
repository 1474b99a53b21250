"""Seconds to a test ELBO on MNIST: our optimizer for networks against tuned Adam and other peers.

One architecture (784-200-200-2x100, 100-200-200-784), every method free in batch size, step and
schedule. Adam is tuned over step x batch x {plain, Nesterov}: every grid point gets a pilot, the
finalists run to the end, without and with an average of the iterates. All contenders of a stage
take turns in small slices, so that a noisy machine is noisy for all. Compilation and evaluation are
off the clock, set-up work is on it. One JSON object is printed.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vpng import ELBO, Parameters, optimizers
from vpng.fisher import Predictive, Probed
from vpng.kronecker import GradientFactors, InputsAndOutputs, discover, in_eigenbasis
from vpng.paper.datasets import load_mnist
from vpng.paper.experiments.crossing import first_crossing
from vpng.paper.experiments.vae import mean_elbo
from vpng.problems import mlp_vae
from vpng.problems.autoencoder import Setup, calibrated
from vpng.training import Loop, TrainState
from vpng.transform import averaged, iterate_average

THRESHOLDS = (-95.0, -90.0, -87.0, -85.0, -83.5)
STEPS = (5e-4, 1e-3, 2e-3, 3e-3)
BATCHES = (64, 128, 256)
WARM_UP = 200.0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def both(state: TrainState) -> tuple[Parameters, Parameters]:
    """The current parameters and their average."""
    return state.params, averaged(state.optimizer)


def warm_up(step: jax.Array) -> jax.Array:
    """The KL weight from 0.1 to 1 over the first steps."""
    return jnp.minimum(1.0, 0.1 + (step + 1.0) / WARM_UP)


@dataclass(eq=False)
class Contender:
    """A run that is advanced in slices."""

    name: str
    loop: Loop
    state: TrainState
    slice_steps: int
    seconds: float = 0.0
    curve: dict[str, list[float]] = field(
        default_factory=lambda: {"seconds": [], "iteration": [], "raw": [], "averaged": []}
    )

    def advance(self) -> None:
        result = self.loop.run(self.state, self.slice_steps, progress=False)
        self.state = result.state
        for record in result.history.records:
            self.curve["seconds"].append(self.seconds + record.seconds)
            self.curve["iteration"].append(record.iteration)
            for name in ("raw", "averaged"):
                self.curve[name].append(record.metrics[name])
        self.seconds += result.history.records[-1].seconds

    def reached(self, which: str, threshold: float) -> float | None:
        """The time at which the curve crosses `threshold`, between two evaluations."""
        return first_crossing(self.curve["seconds"], self.curve[which], threshold)

    def best(self, which: str) -> float:
        finite = [value for value in self.curve[which] if np.isfinite(value)]
        return max(finite, default=-np.inf)


class Bench:
    """The data, the problem, and compiled loops for every kind of contender."""

    def __init__(self) -> None:
        images = load_mnist()
        self.setups: dict[int, Setup] = {}
        self.images = images
        self.test = jnp.asarray(images.test)

    def setup(self, seed: int) -> Setup:
        if seed not in self.setups:
            self.setups[seed] = mlp_vae(jax.random.key(seed), self.images.train, latent_dim=100)
        return self.setups[seed]

    def loop(
        self, optimizer: optax.GradientTransformation, batch_size: int, objective: ELBO, every: int
    ) -> Loop:
        problem, params, data = self.setup(0)
        measure = mean_elbo(problem, self.test, 1)
        return Loop(
            problem,
            params,
            data,
            optimizer,
            objective=objective,
            batch_size=batch_size,
            record_every=every,
            metrics={
                "raw": lambda pair, key: measure(pair[0], key),
                "averaged": lambda pair, key: measure(pair[1], key),
            },
            readout=both,
        )

    def adam_loops(self) -> dict[tuple[int, bool], Loop]:
        """One program for every batch size and kind; the step lives in the state."""
        loops = {}
        for batch_size in BATCHES:
            for nesterov in (False, True):
                say(f"compiling Adam, batch {batch_size}, nesterov {nesterov}")

                def make(learning_rate: float, nesterov: bool = nesterov):
                    momentum = 0.95 if nesterov else 0.9
                    return optax.adam(learning_rate, b1=momentum, nesterov=nesterov)

                optimizer = iterate_average(
                    optax.inject_hyperparams(make)(learning_rate=1e-3),
                    horizon=16.0,
                    max_decay=0.9995,
                )
                every = 50 * 256 // batch_size
                loops[batch_size, nesterov] = self.loop(optimizer, batch_size, ELBO(1), every)
        return loops

    def adam(self, loop: Loop, batch: int, nesterov: bool, rate: float, seed: int) -> Contender:
        state = loop.init(self.setup(seed).parameters, jax.random.key(100 + seed))
        rates = state.optimizer.inner.hyperparams
        rates["learning_rate"] = jnp.full_like(rates["learning_rate"], rate)
        name = f"adam {rate:g}, batch {batch}" + (", nesterov" if nesterov else "")
        return Contender(name, loop, state, 50 * 256 // batch)

    def ours(self, name: str, seed: int, *, warm: bool = True, **options) -> Contender:
        setup = self.setup(seed)
        params = calibrated(setup) if warm else setup.parameters
        began = time.perf_counter()
        optimizer = optimizers.network_vpng(setup.problem, params, setup.data, **options)
        jax.block_until_ready(optimizer.init(params))
        set_up = time.perf_counter() - began
        objective = ELBO(1, kl_weight=warm_up) if warm else ELBO(1)
        loop = self.loop(optimizer, 256, objective, 50)
        state = loop.init(params, jax.random.key(100 + seed))
        return Contender(name, loop, state, 50, seconds=set_up)

    def peer(
        self, name: str, seed: int, inner: optax.GradientTransformation, batch_size: int = 256
    ) -> Contender:
        optimizer = iterate_average(inner, horizon=16.0, max_decay=0.9995)
        loop = self.loop(optimizer, batch_size, ELBO(1), 50)
        state = loop.init(self.setup(seed).parameters, jax.random.key(100 + seed))
        return Contender(name, loop, state, 50)

    def soap(self, seed: int) -> Contender:
        """The same rule, in the eigenbasis of the ELBO gradient's own factors."""
        problem, params, data = self.setup(seed)
        structure = discover(problem, params, data[:8], Predictive(Probed(1), num_particles=1))
        adam = optax.scale_by_adam(b1=0.9, b2=0.98, eps=0.0, eps_root=1e-3 / 256, nesterov=True)
        direction = in_eigenbasis(
            problem, structure, adam, source=GradientFactors(), sides=InputsAndOutputs()
        )
        rate = lambda step: -0.006 / jnp.sqrt(1.0 + step / 400.0)
        return self.peer("soap", seed, optax.chain(direction, optax.scale_by_schedule(rate)))


def race(contenders: list[Contender], seconds: float, goal: float) -> None:
    """Advance everybody in turns until each has used its time or passed the goal for good."""
    running = list(contenders)
    while running:
        for contender in list(running):
            contender.advance()
            done = contender.best("raw") >= goal or (
                contender.best("averaged") >= goal and contender.seconds > 0.7 * seconds
            )
            if contender.seconds >= seconds or done:
                running.remove(contender)
                ends = ", ".join(f"{w} {contender.best(w):.2f}" for w in ("raw", "averaged"))
                say(f"{contender.name}: {contender.seconds:.1f} s, {ends}")


def medians(runs: list[Contender], which: str) -> dict[str, float | None]:
    """Median time over seeds to every threshold; None if a seed never got there."""
    found: dict[str, float | None] = {}
    for threshold in THRESHOLDS:
        times = [run.reached(which, threshold) for run in runs]
        known = [t for t in times if t is not None]
        found[f"{threshold:g}"] = statistics.median(known) if len(known) == len(times) else None
    return found


def best_of(groups: dict[str, list[Contender]], which: str) -> dict[str, dict]:
    """At every threshold the fastest of several settings: the baseline picks its best each time."""
    found = {}
    for threshold in THRESHOLDS:
        key = f"{threshold:g}"
        times = {name: medians(runs, which)[key] for name, runs in groups.items()}
        known = {name: t for name, t in times.items() if t is not None}
        name = min(known, key=known.get) if known else None
        found[key] = {"seconds": known.get(name), "setting": name}
    return found


def ratio(
    base: dict[str, dict], ours: dict[str, float | None], budget: float
) -> dict[str, float | None]:
    """Their time over ours; where they never got there, their whole budget: a lower bound."""
    return {
        key: (entry["seconds"] or budget) / ours[key] if ours[key] else None
        for key, entry in base.items()
    }


def never(base: dict[str, dict]) -> list[str]:
    """Thresholds that no setting reached, at which a ratio is a lower bound."""
    return [key for key, entry in base.items() if entry["seconds"] is None]


def kfac_jax_status() -> str:
    try:
        import kfac_jax  # noqa: F401
    except Exception as error:  # any failure of an optional peer is a reason, not a crash
        return f"skipped: {type(error).__name__}: {error}"
    return "skipped: kfac-jax 0.0.8 fails inside its tracer on jax 0.10 without a patch"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--pilot-seconds", type=float, default=10.0)
    parser.add_argument("--adam-seconds", type=float, default=75.0)
    parser.add_argument("--our-seconds", type=float, default=30.0)
    parser.add_argument("--no-peers", action="store_true")
    options = parser.parse_args()
    bench = Bench()
    seeds = range(options.seeds)

    loops = bench.adam_loops()
    grid = [(b, n, rate) for (b, n) in loops for rate in STEPS]
    pilots = {point: bench.adam(loops[point[:2]], *point, 0) for point in grid}
    race(list(pilots.values()), options.pilot_seconds, np.inf)
    ranked = {
        which: sorted(grid, key=lambda point: -pilots[point].best(which))
        for which in ("raw", "averaged")
    }
    # The best of every batch size goes on: small batches lead early and fall behind later.
    leaders = [
        next(point for point in ranked[which] if point[0] == batch_size)
        for batch_size in BATCHES
        for which in ranked
    ]
    finalists = list(dict.fromkeys(leaders))
    say(f"finalists: {[pilots[point].name for point in finalists]}")

    groups = {
        pilots[point].name: [bench.adam(loops[point[:2]], *point, seed) for seed in seeds]
        for point in finalists
    }
    ours = {
        "recommended": [bench.ours("ours", seed) for seed in seeds],
        "plain_start": [bench.ours("ours, plain start", seed, warm=False) for seed in seeds],
    }
    peers: dict[str, list[Contender]] = {}
    if not options.no_peers:
        peers = {
            "inputs_and_outputs": [bench.ours("ours, both sides", 0, sides=InputsAndOutputs())],
            "soap": [bench.soap(0)],
            "muon": [bench.peer("muon", 0, optax.contrib.muon(5e-3))],
        }
    race(
        [run for runs in ours.values() for run in runs]
        + [run for runs in peers.values() for run in runs],
        options.our_seconds,
        THRESHOLDS[-1],
    )
    race([run for runs in groups.values() for run in runs], options.adam_seconds, THRESHOLDS[-1])

    mine = {name: medians(runs, "averaged") for name, runs in ours.items()}
    plain, average = best_of(groups, "raw"), best_of(groups, "averaged")
    report = {
        "thresholds": [f"{t:g}" for t in THRESHOLDS],
        "ours": mine,
        "adam": plain,
        "adam_averaged": average,
        "ratios_plain": ratio(plain, mine["recommended"], options.adam_seconds),
        "ratios": ratio(average, mine["recommended"], options.adam_seconds),
        "ratios_plain_start": ratio(average, mine["plain_start"], options.adam_seconds),
        "lower_bounds": {"ratios_plain": never(plain), "ratios": never(average)},
        "peers": {
            name: {which: medians(runs, which) for which in ("raw", "averaged")}
            for name, runs in peers.items()
        }
        | {"kfac_jax": kfac_jax_status()},
        "milliseconds_per_step": {
            run.name: 1e3 * run.seconds / run.curve["iteration"][-1]
            for runs in [*ours.values(), *groups.values(), *peers.values()]
            for run in runs[:1]
        },
        "pilot": {
            run.name: {which: run.best(which) for which in ("raw", "averaged")}
            for run in pilots.values()
        },
        "settings": vars(options),
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
