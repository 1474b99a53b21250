"""How soon does VPNG reach the gradient's final test ELBO in matrix factorisation?

The made-up matrix of 20,000 users and 500 movies, a tenth of the users for the test, batches of
1,000 and one particle. Every method has the same grid of steps; all points take turns in slices of
20 steps, and the clock is the processor's, without compilation and evaluation, so that a noisy
machine is noisy for all. Of each method the point with the best train ELBO at the end of its time
counts. Each is measured twice: the parameters as they are, and the average of the iterates, which
everybody can have. One JSON object is printed.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vpng import ELBO, optimizers
from vpng.kronecker import FactoredTikhonov
from vpng.paper.datasets import rating_matrix, split_users, synthetic_ratings
from vpng.paper.experiments.crossing import first_crossing
from vpng.paper.experiments.networks import Factored, eigenbasis_direction, network_optimizer
from vpng.plot.methods import Method
from vpng.problems import MatrixFactorization, counted, leading_directions
from vpng.training import Loop, TrainState
from vpng.training.mean_elbo import mean_elbo
from vpng.transform import averaged, iterate_average

BATCH, SLICE = 1000, 20
READOUTS = {"plain": lambda state: state.params, "averaged": lambda s: averaged(s.optimizer)}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(eq=False)
class Contender:
    """One method at one step size, advanced in slices."""

    method: str
    learning_rate: float
    loop: Loop
    state: TrainState
    seconds: float = 0.0
    curves: dict[str, list[tuple[float, int, float]]] = field(
        default_factory=lambda: {name: [] for name in READOUTS}
    )
    train_elbo: dict[str, float] = field(default_factory=dict)

    def advance(self, test_elbos) -> bool:
        """One slice; whether all is still finite."""
        began = time.process_time()
        self.state = self.loop.run(self.state, SLICE, progress=False).state
        self.seconds += time.process_time() - began
        for name, value in test_elbos(self.state).items():
            self.curves[name].append((self.seconds, int(self.state.step), float(value)))
        return bool(np.isfinite(self.curves["plain"][-1][2]))

    def reached(self, readout: str, target: float) -> float | None:
        """Seconds to `target`, between two evaluations."""
        seconds, _, values = zip(*self.curves[readout], strict=True)
        return first_crossing(seconds, values, target)


def with_average(of_rate):
    return lambda learning_rate: iterate_average(of_rate(learning_rate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of the processor, for each")
    parser.add_argument("--rates", default="0.0003,0.001,0.003,0.01")
    parser.add_argument("--methods", default="vpng_eigenbasis,vpng_block,natural_gradient")
    options = parser.parse_args()
    rates = [float(rate) for rate in options.rates.split(",")]

    split = split_users(rating_matrix(synthetic_ratings()).counts)
    problem = MatrixFactorization(len(split.train), split.train.shape[1], 100)
    parameters = problem.init(jax.random.key(0))
    data, size = counted(split.train), len(split.test)
    part = lambda count: jax.tree.map(lambda leaf: leaf[:count], data)

    def elbos_of(rows):
        measure = mean_elbo(problem, rows, 1)
        return jax.jit(
            lambda state: {
                name: measure(readout(state), jax.random.key(2))
                for name, readout in READOUTS.items()
            }
        )

    test_elbos, train_elbos = elbos_of(counted(split.test)), elbos_of(part(size))

    def chain(method: Method):
        if method is Method.VPNG_EIGENBASIS:
            most = leading_directions(problem.num_data, problem.num_items)
            direction = eigenbasis_direction(problem, parameters, part(BATCH), part(10_000), most)
            return lambda rate: optax.chain(direction, optax.scale_by_learning_rate(rate))
        if method is Method.GRADIENT:
            adam = optax.scale_by_adam()
            return lambda rate: optimizers.gradient(rate, rule=adam)
        factored = Factored(factor_damping=FactoredTikhonov(), inverse_period=20)
        return lambda rate: network_optimizer(
            factored, method, problem, parameters, part(BATCH), rate, False
        )

    contenders = []
    for name in ("gradient", *options.methods.split(",")):
        say(f"compiling {name}")
        optimizer = optax.inject_hyperparams(with_average(chain(Method(name))))(learning_rate=1.0)
        loop = Loop(
            problem,
            parameters,
            data,
            optimizer,
            objective=ELBO(1),
            batch_size=BATCH,
            record_every=SLICE,
        )
        for rate in rates:
            state = loop.init(parameters, jax.random.key(1))
            chosen = state.optimizer.hyperparams
            chosen["learning_rate"] = jnp.full_like(chosen["learning_rate"], rate)
            contenders.append(Contender(name, rate, loop, state))
    going = list(contenders)
    while going:
        for one in list(going):
            finite = one.advance(test_elbos)
            if one.seconds >= options.seconds or not finite:
                going.remove(one)
                found = {name: float(value) for name, value in train_elbos(one.state).items()}
                one.train_elbo = {
                    name: value if np.isfinite(value) else -np.inf for name, value in found.items()
                }
                last = {name: curve[-1] for name, curve in one.curves.items()}
                say(f"{one.method}, {one.learning_rate:g}: {last}, train {found}")

    report: dict = {"processor_seconds": options.seconds}
    for readout in READOUTS:
        best = {
            name: max(
                (one for one in contenders if one.method == name),
                key=lambda one: one.train_elbo[readout],
            )
            for name in dict.fromkeys(one.method for one in contenders)
        }
        base = best["gradient"].curves[readout]
        report[readout] = {}
        for name, one in best.items():
            curve = one.curves[readout]
            when = one.reached(readout, base[-1][2])
            report[readout][name] = {
                "learning_rate": one.learning_rate,
                "milliseconds_per_step": 1e3 * curve[-1][0] / curve[-1][1],
                "final_test_elbo": curve[-1][2],
                "best_test_elbo": float(np.nanmax([value for _, _, value in curve])),
                "final_train_elbo": one.train_elbo[readout],
                "seconds_to_gradient_final": when,
                "times_faster": None if when is None else base[-1][0] / when,
                "curve": curve,
            }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
