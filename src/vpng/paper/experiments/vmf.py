"""Variational matrix factorisation, Section 5.3: Poisson ratings of movies by users."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array, UInt8

from vpng.checks import finite_scalar, positive_integer
from vpng.distributed import Layout
from vpng.errors import expected
from vpng.kronecker import FactoredTikhonov
from vpng.objective import ELBO
from vpng.paper.datasets import (
    EDITIONS,
    MOVIELENS_20M,
    load_movielens,
    rating_matrix,
    split_users,
    synthetic_ratings,
)
from vpng.paper.experiments.contest import (
    Contest,
    GridPoint,
    Rules,
    Train,
    Trained,
    contest,
    loop_trainer,
    summarise,
)
from vpng.paper.experiments.networks import (
    Factored,
    draw_curves,
    eigenbasis_direction,
    elbo_table,
    network_optimizer,
    race,
)
from vpng.paper.experiments.results import Headline, Results, Table, mean_and_std
from vpng.paper.experiments.rules import RULES
from vpng.paper.experiments.session import ProgressReport, Session
from vpng.plot.methods import Method
from vpng.problems import Counted, MatrixFactorization, counted, leading_directions
from vpng.training.mean_elbo import mean_elbo
from vpng.transform.trust_region import HALF_A_NAT

METHODS = (
    Method.GRADIENT,
    Method.NATURAL_GRADIENT,
    Method.VPNG,
    Method.VPNG_BLOCK,
    Method.VPNG_EIGENBASIS,
    Method.HESSIAN_FREE,
)
HEADLINE = Headline("test_elbo", "test ELBO per user", axes=("seconds", "iteration"))
PAPER = (
    "On MovieLens 20M VPNG is ahead of the gradient and of the natural gradient on training and "
    "test users, over several train/test splits (Figure 3; no table is given).",
    "The natural gradient is the slowest at the beginning.",
)
"""What the paper says of its own runs."""


class DataSet(StrEnum):
    """Which ratings: made up, small or in the shape of MovieLens 20M, or an edition of it."""

    SYNTHETIC = "synthetic"
    SYNTHETIC_20M = "synthetic-20m"
    ML_LATEST_SMALL = "ml-latest-small"
    ML_1M = "ml-1m"
    ML_10M = "ml-10m"
    ML_20M = "ml-20m"
    ML_25M = "ml-25m"


@dataclass(frozen=True)
class VmfConfig:
    """The experiment's settings, the paper's where it gives them.

    Attributes:
        data: which ratings.
        min_ratings: ratings that a movie needs to be kept; None for the data set's own, which for
            20M is the paper's 5,000.
        batch_size: users for a step, at most an eighteenth of the training users: the paper's
            3,000 is a fortieth.
        latent_dim: the length of a user's latent vector.
        num_particles: Monte Carlo samples for the ELBO and its gradient.
        kl_weight: of the KL term in the training loss; 1 is the ELBO, as in the paper.
        dropout: the chance that the inference network does not see a rating; 0 as in the paper.
        budget: seconds of each method's chosen run, without compilation and evaluation; None if
            `iterations` decides, whatever the speed of the machine.
        pilot: part of the budget for which every grid point is tried; the better half goes on for
            twice as long, until one is left. 1 runs all of them to the end, as the paper does.
        record_every: steps between two evaluations.
        evaluation_particles: draws for the train, validation and test ELBO.
        learning_rates: the grid of step sizes, the same for every method.
        rules: what is put on top of each direction, part of the grid; in the eigenbasis the rule
            is always its own Adam.
        damping: mu, shared between the two Kronecker factors of a layer.
        trust_radius: the longest step of a natural gradient in its own metric, in nats per datum;
            None for no limit.
        decay: of the moving averages of the factors; None for none.
        statistics_period: steps between two refreshes of the factors.
        inverse_period: steps between two refreshes of their inverses.
        low_rank: keep K ln(dim) eigenvectors of large factors with this K; None for all.
        iterations: most steps of a run.
        seeds: number of runs of the chosen grid point, each with a train/test split of its own.
        methods: which to run.
    """

    data: DataSet = DataSet.SYNTHETIC
    min_ratings: int | None = None
    batch_size: int = 3000
    latent_dim: int = 100
    num_particles: int = 1
    kl_weight: float = 1.0
    dropout: float = 0.0
    budget: float | None = 20.0
    pilot: float = 0.1
    record_every: int = 20
    evaluation_particles: int = 2
    learning_rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)
    rules: tuple[str, ...] = RULES
    damping: float = 0.1
    trust_radius: float | None = HALF_A_NAT
    decay: float | None = 0.9
    statistics_period: int = 5
    inverse_period: int = 20
    low_rank: float | None = None
    iterations: int = 1_000_000
    seeds: int = 1
    methods: tuple[Method, ...] = METHODS

    def __post_init__(self) -> None:
        names = (
            "batch_size latent_dim num_particles record_every evaluation_particles "
            "statistics_period inverse_period iterations seeds"
        )
        for name in names.split():
            positive_integer(name, getattr(self, name))
        if self.min_ratings is not None:
            positive_integer("min_ratings", self.min_ratings)
        if self.budget is not None:
            finite_scalar("budget", self.budget, minimum=0.0, strict=True)
        finite_scalar("damping", self.damping, minimum=0.0, strict=True)
        finite_scalar("kl_weight", self.kl_weight, minimum=0.0, strict=False)
        if self.trust_radius is not None:
            finite_scalar("trust_radius", self.trust_radius, minimum=0.0, strict=True)
        if not 0.0 < self.pilot <= 1.0:
            raise expected("pilot", "a part of the budget in (0, 1]", self.pilot)
        if not 0.0 <= self.dropout < 1.0:
            raise expected("dropout", "a chance in [0, 1)", self.dropout)
        for rate in self.learning_rates:
            finite_scalar("learning_rates", rate, minimum=0.0, strict=True)
        if self.data not in set(DataSet):
            raise expected("data", f"one of {', '.join(DataSet)}", repr(self.data))


def load_counts(data: DataSet, min_ratings: int | None = None) -> UInt8[np.ndarray, "n m"]:
    """The matrix R of a data set; its own threshold of popularity if none is given."""
    match data:
        case DataSet.SYNTHETIC:
            ratings, own = synthetic_ratings(), 1
        case DataSet.SYNTHETIC_20M:
            ratings, own = synthetic_ratings(MOVIELENS_20M), EDITIONS["ml-20m"].min_ratings
        case _:
            ratings, own = load_movielens(data.value), EDITIONS[data.value].min_ratings
    return rating_matrix(ratings, min_ratings=min_ratings or own).counts


def run(config: VmfConfig, session: Session | None = None) -> Results:
    """Every method: successive halving over the grid, then the best point for the whole budget."""
    session = session or Session()
    session("reading the ratings")
    counts = load_counts(config.data, config.min_ratings)

    def trainer(method: Method) -> Train:
        by_split: dict[int, Train] = {}

        def train(
            point: GridPoint, seed: int, steps: int, seconds: float | None, tell: ProgressReport
        ) -> Trained:
            if seed not in by_split:
                tell(0.0, "compiling")
                by_split[seed] = _split_trainer(config, method, counts, seed, session.layout)
            return by_split[seed](point, seed, steps, seconds, tell)

        return train

    points = [GridPoint(rate, rule) for rule in config.rules for rate in config.learning_rates]
    rules = Rules(
        config.methods, points, config.seeds, config.budget, config.iterations, config.pilot
    )
    outcome = contest(session, rules, trainer)
    summary = summarise(outcome, ("test_elbo", "train_elbo"))
    for name, best in best_by_validation(outcome).items():
        summary[name] |= best
    shape = {"users": counts.shape[0], "movies": counts.shape[1], "filled": np.mean(counts > 0)}
    return Results(
        "vmf",
        asdict(config),
        outcome.runs,
        summary,
        {
            "grid": outcome.grid,
            "race": race(outcome.runs),
            "matrix": shape,
            "findings": outcome.findings,
        },
        headline=HEADLINE,
        paper=PAPER,
    )


def _split_trainer(
    config: VmfConfig,
    method: Method,
    counts: UInt8[np.ndarray, "n m"],
    seed: int,
    layout: Layout | None,
) -> Train:
    """One compiled program for all grid points on one split of the users.

    A tenth of the users is the test set. Of the rest as many are the validation set, which no step
    sees, and as many of those that are left measure the train ELBO.
    """
    split = split_users(counts, seed=seed)
    size = len(split.test)
    validation, train = split.train[:size], split.train[size:]
    batch_size = min(config.batch_size, max(len(train) // 18, 1))
    problem = MatrixFactorization(
        len(train), counts.shape[1], config.latent_dim, dropout=config.dropout
    )
    parameters = problem.init(jax.random.key(seed))
    data = counted(train)
    evaluated: dict[str, Counted] = {
        "train_elbo": counted(train[:size]),
        "validation_elbo": counted(validation),
        "test_elbo": counted(split.test),
    }
    factored = Factored(
        damping=config.damping,
        factor_damping=FactoredTikhonov(),
        decay=config.decay,
        radius=config.trust_radius,
        statistics_period=config.statistics_period,
        inverse_period=config.inverse_period,
        low_rank=config.low_rank,
        num_particles=config.num_particles,
    )
    batch, many = (
        jax.tree.map(lambda leaf, size=size: leaf[:size], data) for size in (batch_size, 10_000)
    )

    if method is Method.VPNG_EIGENBASIS:
        most = leading_directions(len(train), problem.num_items)
        direction = eigenbasis_direction(problem, parameters, batch, many, most)

        def at(learning_rate: Array, rmsprop: Array) -> optax.GradientTransformation:
            return optax.chain(direction, optax.scale_by_learning_rate(learning_rate))
    else:

        def at(learning_rate: Array, rmsprop: Array) -> optax.GradientTransformation:
            return network_optimizer(
                factored, method, problem, parameters, batch, learning_rate, rmsprop > 0.5
            )

    return loop_trainer(
        problem,
        parameters,
        data,
        at,
        problem.init,
        objective=ELBO(config.num_particles, kl_weight=config.kl_weight),
        batch_size=batch_size,
        record_every=config.record_every,
        metrics={
            name: mean_elbo(problem.whole(), part, config.evaluation_particles)
            for name, part in evaluated.items()
        },
        show="test_elbo",
        layout=layout,
    )


def best_by_validation(outcome: Contest) -> dict[str, dict[str, Any]]:
    """Per method what early stopping gives: the test ELBO where the validation ELBO was best.

    Of a run without a finite one it is the first.
    """
    found = {}
    for name, finished in outcome.trained.items():
        places = [
            int(np.argmax(np.nan_to_num(result.curves["validation_elbo"], nan=-np.inf)))
            for result in finished
        ]
        pairs = list(zip(finished, places, strict=True))
        value: Callable[[str], float] = lambda curve, pairs=pairs: mean_and_std(
            [result.curves[curve][place] for result, place in pairs]
        )["mean"]
        found[name] = {
            "test_elbo_best": value("test_elbo"),
            "seconds_to_best": value("seconds"),
            "iterations_to_best": value("iteration"),
        }
    return found


def table(results: Results) -> Table:
    """The heads and rows of the printed table."""
    heads, rows = elbo_table(results)
    heads.insert(2, "Test ELBO, stopped early")
    for row, entry in zip(rows, results.summary.values(), strict=True):
        moment = f"{entry['iterations_to_best']:.0f}, {entry['seconds_to_best']:.0f} s"
        row.insert(2, f"{entry['test_elbo_best']:.2f} at {moment}")
    return heads, rows


def draw(results: Results, folder: Path) -> list[Path]:
    """The learning curves."""
    return draw_curves(results, folder, "user")
