"""What keeps a step that is three times too large from ending a run? Two ablations.

On the digits: the paper's networks with 100 units and 50 latents, RMSProp on top of every
direction, batches of 100 and two particles, far beyond the first plateau. On ratings: a small copy
of the matrix factorisation, 3,200 users and 150 movies, one particle. Rows differ in the method, in
the step size, in the limit on a step in the metric (`vpng.transform.limit_step`), in whether the
guard that takes explosions back is on, and in how often inverses are made. Printed in Markdown, row
by row: the train ELBO at its best and at the end, the record at which the run was last near its
best, how far the median step until then would have moved the metric's distribution (in nats per
datum, before any limit), and the largest log-scale that the encoder gives to any datum at the end.
No clock is involved.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vpng import ELBO
from vpng.kronecker import FactoredTikhonov
from vpng.paper.datasets import Shape, load_digits, rating_matrix, split_users, synthetic_ratings
from vpng.paper.experiments.networks import Factored, network_optimizer
from vpng.plot.methods import Method
from vpng.problem import Parameters
from vpng.problems import MatrixFactorization, counted, mlp_vae
from vpng.problems.amortised import AmortisedNormal
from vpng.problems.networks import TRUNCATED_NORMAL
from vpng.training import Guard, Loop
from vpng.training.mean_elbo import mean_elbo
from vpng.transform import TrustRegionState
from vpng.transform.trust_region import HALF_A_NAT

NO_LIMIT = 1e30
"""A radius that no step reaches, so that lengths are measured all the same."""

NEAR = 0.5
"""Nats below its best at which a run still counts as near it."""

HEADS = ("Method", "Rule", "Rate", "Limit", "Guard", "Inverses")
HEADS += ("Best", "Final", "Last near", "Length", "Log-scale")


FREE = Factored(radius=NO_LIMIT)
LIMITED = Factored(radius=HALF_A_NAT)


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    method: Method = Method.VPNG
    rate: float = 0.03
    factored: Factored = FREE
    guard: Guard | None = None
    rmsprop: bool = True


class Course(NamedTuple):
    """What is run, and how."""

    problem: AmortisedNormal
    params: Parameters
    data: Any
    batch_size: int
    num_particles: int
    settings: Sequence[Setting]

    def log_scale(self, params: Parameters, _: jax.Array) -> jax.Array:
        """The largest of any datum in any direction."""
        return jnp.max(self.problem.encode(params.variational, self.data)[1])


def digits() -> Course:
    """The paper's autoencoder, smaller."""
    setup = mlp_vae(
        jax.random.key(0),
        load_digits().train,
        latent_dim=50,
        hidden=(100, 100),
        initialiser=TRUNCATED_NORMAL,
    )
    settings = [
        Setting(rate=0.01),
        Setting(),
        Setting(guard=Guard()),
        Setting(factored=LIMITED),
        Setting(factored=LIMITED, guard=Guard()),
        Setting(rate=0.01, factored=LIMITED, guard=Guard()),
        Setting(rate=0.01, factored=replace(LIMITED, inverse_period=5), guard=Guard()),
    ]
    for method in (Method.VPNG_BLOCK, Method.NATURAL_GRADIENT):
        settings += [
            Setting(method),
            Setting(method, factored=LIMITED, guard=Guard()),
            Setting(method, 0.01, LIMITED, Guard()),
        ]
    settings += [Setting(Method.GRADIENT, rate, guard=Guard()) for rate in (0.03, 0.01)]
    return Course(setup.problem, setup.parameters, setup.data, 100, 2, settings)


def ratings() -> Course:
    """The paper's matrix factorisation, much smaller."""
    split = split_users(rating_matrix(synthetic_ratings(Shape(4000, 150, 48_000))).counts, seed=0)
    train = split.train[len(split.test) :]
    problem = MatrixFactorization(len(train), train.shape[1], latent_dim=20)
    params = problem.init(jax.random.key(0), hidden=(100, 100))
    free, limited = (replace(f, factor_damping=FactoredTikhonov()) for f in (FREE, LIMITED))
    settings = []
    for method in (Method.VPNG, Method.NATURAL_GRADIENT):
        for rmsprop, rate in ((False, 0.01), (False, 0.03), (True, 0.03)):
            settings += [
                Setting(method, rate, free, rmsprop=rmsprop),
                Setting(method, rate, limited, Guard(), rmsprop),
            ]
    for rmsprop, rate in ((False, 0.01), (False, 0.03), (True, 0.03)):
        settings.append(Setting(Method.GRADIENT, rate, guard=Guard(), rmsprop=rmsprop))
    return Course(problem, params, counted(train), len(train) // 18, 1, settings)


COURSES = {"digits": digits, "ratings": ratings}


Program = tuple[Method, Factored, Guard | None]


def row(
    course: Course, setting: Setting, steps: int, record_every: int, compiled: dict[Program, Loop]
) -> list[str]:
    """Run a setting and say how it went; settings that differ in the rule alone share a program."""
    problem, params, data = course[:3]
    batch = jax.tree.map(lambda leaf: leaf[: course.batch_size], data)

    def at(learning_rate: jax.Array, rmsprop: jax.Array) -> optax.GradientTransformation:
        return network_optimizer(
            setting.factored, setting.method, problem, params, batch, learning_rate, rmsprop > 0.5
        )

    hyper = {"learning_rate": setting.rate, "rmsprop": float(setting.rmsprop)}
    optimizer = optax.inject_hyperparams(at)(**hyper)
    program = (setting.method, setting.factored, setting.guard)
    if program not in compiled:
        compiled[program] = Loop(
            problem,
            params,
            data,
            optimizer,
            objective=ELBO(course.num_particles),
            batch_size=course.batch_size,
            record_every=record_every,
            metrics={"train": mean_elbo(problem, data, 2), "log_scale": course.log_scale},
            guard=setting.guard,
        )
    loop = compiled[program]
    lengths: list[float] = []
    is_limit = lambda node: isinstance(node, TrustRegionState)

    def measure(_: Any, state: Any) -> None:
        found = [n for n in jax.tree.leaves(state.optimizer, is_leaf=is_limit) if is_limit(n)]
        lengths.extend(float(node.length) for node in found)

    state = loop.init(params, jax.random.key(1), optimizer)
    history = loop.run(state, steps, callbacks=[measure], progress=False).history
    train = np.array([record.metrics["train"] for record in history.records])
    best = np.max(train, initial=-np.inf, where=np.isfinite(train))
    near = max(np.flatnonzero(train > best - NEAR), default=0)
    limit = f"{setting.factored.radius:g}" if setting.factored.radius != NO_LIMIT else "none"
    return [
        setting.method.label,
        "rmsprop" if setting.rmsprop else "adam",
        f"{setting.rate:g}",
        limit if lengths else "",
        "on" if setting.guard else "off",
        str(setting.factored.inverse_period) if lengths else "",
        f"{best:.2f}",
        f"{train[-1]:.2f}" if abs(train[-1]) < 1e6 else f"{train[-1]:.1e}",
        str(history.records[near].iteration),
        f"{np.nanmedian(lengths[: near + 1]):.2g}" if lengths else "",
        f"{history.records[-1].metrics['log_scale']:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("course", choices=COURSES)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--record-every", type=int, default=50)
    arguments = parser.parse_args()
    course = COURSES[arguments.course]()
    compiled: dict[Program, Loop] = {}
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}", flush=True)
    for setting in course.settings:
        cells = row(course, setting, arguments.steps, arguments.record_every, compiled)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
