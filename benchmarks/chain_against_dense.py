"""The Kronecker forms of F beside F itself, early and late in a run of tridiagonal VPNG.

A small autoencoder on the digits is trained with RMSProp at a constant rate on top of the
tridiagonal form, without a limit on its steps. At some iterations F is computed as a dense matrix,
and each form's inverse column by column: from the factors that the run itself has at that moment,
and from factors computed there and then without sampling. With M = (F_form + mu)^-1 the columns,
in double precision, are

- overshoot: the largest eigenvalue of M F: how much too long a natural step may be, 1 for F itself;
- cosine: of M g and (F + mu' I)^-1 g in the metric F, for the gradient g of many particles, with
  mu' = mu^2 as in the product of two factors damped by mu;
- natural: the mean length d.F d / 2 of d = M g for gradients g of batches, in nats per image;
- on top: the same for the steps that RMSProp makes of these directions at the run's rate;
- signal: of their mean alone;
- asymmetry: of M, relative to its largest entry: rounding and mistakes;
- correlations: of the link at which they are largest, the squared canonical correlations of inputs
  and outputs.

Printed in Markdown.
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from vpng import ELBO, Exact, Predictive, Probed
from vpng.kronecker import (
    Kronecker,
    KroneckerState,
    KroneckerTridiagonal,
    PerFactor,
    Statistics,
    Structure,
    discover,
    statistics,
)
from vpng.paper.datasets import load_digits
from vpng.paper.experiments.networks import Factored, network_optimizer
from vpng.plot.methods import Method
from vpng.problem import Parameters
from vpng.problems import mlp_vae
from vpng.problems.autoencoder import Setup
from vpng.problems.networks import TRUNCATED_NORMAL
from vpng.training import Loop, TrainState

DAMPING = 0.1
BATCH = 100
NUM_BATCHES = 40
KEY = jax.random.key(5)
HEADS = ("Iteration", "Form", "Factors", "Overshoot", "Cosine", "Natural", "On top", "Signal")
HEADS += ("Asymmetry", "Correlations")
Form = type[Kronecker] | type[KroneckerTridiagonal]


def inverse_of(
    form: Form, structure: Structure, found: Statistics, params: Parameters
) -> tuple[np.ndarray, str]:
    """M as a matrix, and the largest correlations."""
    solver = form(structure, PerFactor(), diagonal_outputs=True)
    seen = found if solver.couples else found._replace(couplings=())
    flat, unravel = ravel_pytree(params)

    @jax.jit
    def columns(seen: Statistics) -> tuple[jax.Array, Any]:
        inverses = solver._inverted(structure, seen, jnp.asarray(DAMPING))
        column = lambda vector: ravel_pytree(
            solver._direction(structure, inverses, unravel(vector))
        )[0]
        return jax.lax.map(column, jnp.eye(flat.size), batch_size=64), inverses.layers

    matrix, layers = columns(seen)
    pairs = [
        (float(a.correlations.max()), float(g.correlations.max()))
        for a, g in getattr(layers, "links", ())
    ]
    largest = max(pairs, key=lambda pair: pair[0] * pair[1], default=None)
    return np.asarray(matrix, np.float64), "" if largest is None else "{:.3f}, {:.3f}".format(
        *largest
    )


class Oracle:
    """F, gradients and what is to be said of an inverse at one point."""

    def __init__(self, setup: Setup, params: Parameters, rate: float) -> None:
        problem, _, data = setup
        metric = Predictive(Exact(), num_particles=1)
        fisher = jax.jit(lambda p: metric.operator(problem, p, data[:400], KEY).to_dense())
        self.fisher = np.asarray(fisher(params), np.float64)
        self.rate = rate

        @jax.jit
        def slope(params: Parameters, key: jax.Array) -> jax.Array:
            rows = jax.random.choice(key, len(data), (BATCH,), replace=False)
            objective = ELBO(2)
            _, found = objective.estimate_and_gradient(key, problem, params, data[rows])
            return ravel_pytree(found)[0]

        keys = jax.random.split(KEY, NUM_BATCHES)
        self.slopes = np.stack([np.asarray(slope(params, key), np.float64) for key in keys])
        whole = jax.jit(lambda p: ELBO(50).estimate_and_gradient(KEY, problem, p, data)[1])
        self.gradient = np.asarray(ravel_pytree(whole(params))[0], np.float64)
        self.dense = np.linalg.inv(self.fisher + DAMPING**2 * np.eye(len(self.fisher)))

    def length(self, steps: np.ndarray) -> float:
        """The mean of d.F d / 2."""
        return 0.5 * float(np.mean(np.sum((steps @ self.fisher) * steps, axis=-1)))

    def columns(self, inverse: np.ndarray) -> list[str]:
        """The numbers of one row, but for the correlations."""
        asymmetry = np.abs(inverse - inverse.T).max() / np.abs(inverse).max()
        root = np.linalg.cholesky((inverse + inverse.T) / 2)
        overshoot = np.linalg.eigvalsh(root.T @ self.fisher @ root)[-1]
        mine, wanted = inverse @ self.gradient, self.dense @ self.gradient
        inner = lambda a, b: a @ self.fisher @ b
        cosine = inner(mine, wanted) / np.sqrt(inner(mine, mine) * inner(wanted, wanted))
        natural = self.slopes @ inverse.T
        steps = self.rate * natural / (np.sqrt(np.mean(natural**2, axis=0)) + 1e-8)
        lengths = [self.length(natural), self.length(steps), self.length(steps.mean(0)[None])]
        numbers = [f"{overshoot:.1f}", f"{cosine:.2f}", *(f"{x:.3g}" for x in lengths)]
        return [*numbers, f"{asymmetry:.0e}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, nargs="+", default=[100, 3000])
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--units", type=int, default=10)
    parser.add_argument("--latents", type=int, default=4)
    arguments = parser.parse_args()
    images = load_digits().train
    setup = mlp_vae(
        jax.random.key(0),
        images,
        latent_dim=arguments.latents,
        hidden=(arguments.units, arguments.units),
        initialiser=TRUNCATED_NORMAL,
    )
    problem, params, data = setup
    structure = discover(problem, params, data[:BATCH], Predictive(Probed(1), num_particles=1))
    optimizer = network_optimizer(
        Factored(damping=DAMPING, radius=None),
        Method.VPNG,
        problem,
        params,
        data[:BATCH],
        arguments.rate,
        rmsprop=True,
    )
    loop = Loop(problem, params, data, optimizer, objective=ELBO(2), batch_size=BATCH)

    @jax.jit
    def unsampled(params: Parameters) -> Statistics:
        operator = Predictive(Exact(), num_particles=1).operator(problem, params, data[:400], KEY)
        return statistics(structure, operator, couplings=True, diagonal_outputs=True)

    def rows(state: TrainState) -> None:
        oracle = Oracle(setup, state.params, arguments.rate)
        is_state = lambda node: isinstance(node, KroneckerState)
        leaves = jax.tree.leaves(state.optimizer, is_leaf=is_state)
        (own,) = [node for node in leaves if is_state(node)]
        sources = {"the run's": own.averages.current, "unsampled": unsampled(state.params)}
        inverses = {("dense", ""): (oracle.dense, "")}
        for name, found in sources.items():
            for form in (Kronecker, KroneckerTridiagonal):
                inverses[form.__name__, name] = inverse_of(form, structure, found, state.params)
        for (form, name), (inverse, correlations) in inverses.items():
            cells = [str(int(state.step)), form, name, *oracle.columns(inverse), correlations]
            print(f"| {' | '.join(cells)} |", flush=True)

    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}", flush=True)
    state = loop.init(params, jax.random.key(1))
    for iteration in arguments.iterations:
        state = loop.run(state, iteration - int(state.step), progress=False).state
        rows(state)


if __name__ == "__main__":
    main()
