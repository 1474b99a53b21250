"""Bayesian logistic regression, Section 5.1: Table 1 and the appendix's AUC curve."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from vpng import optimizers
from vpng.checks import finite_scalar, positive_integer
from vpng.errors import expected
from vpng.fisher import Predictive
from vpng.objective import ELBO
from vpng.paper.experiments.figures import draw_panels
from vpng.paper.experiments.results import Headline, Results, Run, mean_and_std, params_sha256
from vpng.paper.experiments.rules import RULES, adam_or_rmsprop
from vpng.paper.experiments.session import ProgressReport, Session
from vpng.paper.experiments.sweep import Sweep, area_under_curve, sweep
from vpng.plot.methods import Method
from vpng.problem import Parameters
from vpng.problems import Labelled, LogisticRegression
from vpng.training import InMemory

METHODS = (Method.GRADIENT, Method.NATURAL_GRADIENT, Method.VPNG, Method.HESSIAN_FREE)

PAPER = {
    Method.GRADIENT: {"train_auc": (0.734, 0.017), "test_auc": (0.718, 0.022)},
    Method.NATURAL_GRADIENT: {"train_auc": (0.744, 0.043), "test_auc": (0.751, 0.047)},
    Method.VPNG: {"train_auc": (0.972, 0.011), "test_auc": (0.967, 0.011)},
}
"""Table 1 of the paper: mean and standard deviation."""

PAPER_IN_WORDS = (
    "Table 1: VPNG is ahead of both baselines by more than 0.2 of training and test AUC after "
    "2,000 iterations; the numbers are in the table.",
)
HEADLINE = Headline("test_auc", "test AUC", axes=("iteration", "seconds"))


@dataclass(frozen=True)
class LogisticConfig:
    """The experiment's settings, the paper's where it gives them.

    Attributes:
        num_points: data generated.
        num_train: of them used for training.
        prior_scale: sigma_0.
        num_particles: Monte Carlo samples for the ELBO, its gradient and F_r.
        iterations: steps of each run.
        record_every: steps between two AUC scores.
        average_last: scores averaged for the table.
        seeds: runs of each method.
        learning_rates: the grid of step sizes, the same for every method.
        final_rate: part of the step size that is left at the end of the linear decay which every
            method has; 1 for a constant one.
        dampings: the grid of mu, the same for every method that has one.
        initial_scale: the first standard deviation of q.
        data_seed: of the data and the split, both fixed.
        budget: seconds for each method's whole sweep, if `iterations` should not decide.
        methods: which to run.
    """

    num_points: int = 500
    num_train: int = 400
    prior_scale: float = 100.0
    num_particles: int = 10
    iterations: int = 2000
    record_every: int = 100
    average_last: int = 5
    seeds: int = 10
    learning_rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    dampings: tuple[float, ...] = (3e-4, 1e-2, 1.0)
    final_rate: float = 0.05
    initial_scale: float = 0.1
    data_seed: int = 0
    budget: float | None = None
    methods: tuple[Method, ...] = METHODS[:3]

    @property
    def horizon(self) -> int:
        """Steps over which the step size decays: the run's, or the paper's under a time budget."""
        return self.iterations if self.budget is None else 2000

    def __post_init__(self) -> None:
        names = "num_points num_train num_particles iterations record_every average_last seeds"
        for name in names.split():
            positive_integer(name, getattr(self, name))
        if self.num_train >= self.num_points:
            raise expected("num_train", f"less than num_points = {self.num_points}", self.num_train)
        for rate in self.learning_rates:
            finite_scalar("learning_rates", rate, minimum=0.0, strict=True)
        for damping in self.dampings:
            finite_scalar("dampings", damping, minimum=0.0, strict=False)
        for name in ("prior_scale", "initial_scale"):
            finite_scalar(name, getattr(self, name), minimum=0.0, strict=True)
        finite_scalar("data_seed", self.data_seed, minimum=0.0, strict=False)
        if not 0.0 < self.final_rate <= 1.0:
            raise expected("final_rate", "a number in (0, 1]", self.final_rate)
        if self.budget is not None:
            finite_scalar("budget", self.budget, minimum=0.0, strict=True)


class Split(NamedTuple):
    """Training and test data."""

    train: Labelled
    test: Labelled


def make_data(config: LogisticConfig) -> tuple[LogisticRegression, Split]:
    """The synthetic data of Section 5.1: four covariates that are nearly one, and an intercept.

    a ~ U[-5, 5], x = (a, a/2, a/3, a/4) + U[-0.005, 0.005]^4, y = [ (1, -2, -3, 4) . x >= 0 ].
    """
    generator = np.random.default_rng(config.data_seed)
    a = generator.uniform(-5.0, 5.0, size=(config.num_points, 1))
    jitter = generator.uniform(-0.005, 0.005, size=(config.num_points, 4))
    covariates = a / np.arange(1, 5) + jitter
    labels = (covariates @ np.array([1.0, -2.0, -3.0, 4.0]) >= 0).astype(np.float64)
    problem, everything = LogisticRegression.create(
        covariates[: config.num_train],
        labels[: config.num_train],
        prior_scale=config.prior_scale,
    )
    _, test = LogisticRegression.create(
        covariates[config.num_train :], labels[config.num_train :], prior_scale=config.prior_scale
    )
    return problem, Split(everything, test)


_HERMITE = np.polynomial.hermite_e.hermegauss(32)


def mean_prediction(parameters: Parameters, data: Labelled) -> Float[Array, " n"]:
    """E_q[p(y = 1 | x, w)]: the logit is Gaussian under q, so a one-dimensional quadrature."""
    q = parameters.variational
    mean = data.covariates @ q.loc
    spread = jnp.sqrt(data.covariates**2 @ jnp.exp(2.0 * q.log_scale))
    nodes, weights = (jnp.asarray(values, mean.dtype) for values in _HERMITE)
    probabilities = jax.nn.sigmoid(mean[:, None] + spread[:, None] * nodes)
    return probabilities @ weights / jnp.sum(weights)


class GridPoint(NamedTuple):
    """One choice of hyper-parameters; leaves are scalars or, stacked, vectors."""

    learning_rate: Array
    damping: Array
    rmsprop: Array


def _grid(config: LogisticConfig, method: Method) -> GridPoint:
    dampings = (0.0,) if method is Method.GRADIENT else config.dampings
    choices = [
        (rate, damping, rule == "rmsprop")
        for rule in RULES
        for damping in dampings
        for rate in config.learning_rates
    ]
    rates, mus, rules = zip(*choices, strict=True)
    return GridPoint(jnp.asarray(rates), jnp.asarray(mus), jnp.asarray(rules))


def _optimizer_of(
    config: LogisticConfig, method: Method, problem: LogisticRegression
) -> Callable[[GridPoint], optax.GradientTransformation]:
    def make(point: GridPoint) -> optax.GradientTransformation:
        damping, rule = point.damping, adam_or_rmsprop(point.rmsprop)
        rate = optax.linear_schedule(
            point.learning_rate, config.final_rate * point.learning_rate, config.horizon
        )
        match method:
            case Method.GRADIENT:
                return optimizers.gradient(rate, rule=rule)
            case Method.NATURAL_GRADIENT:
                return optimizers.natural_gradient(problem, rate, rule=rule, damping=damping)
            case Method.VPNG:
                metric = Predictive(num_particles=config.num_particles)
                return optimizers.vpng(problem, rate, rule=rule, damping=damping, metric=metric)
            case Method.HESSIAN_FREE:
                objective = ELBO(config.num_particles)
                return optimizers.hessian_free(
                    problem, rate, rule=rule, damping=damping, objective=objective, max_steps=10
                )
            case _:
                raise AssertionError(method)

    return make


def run(config: LogisticConfig, session: Session | None = None) -> Results:
    """All methods, each with all its grid points and seeds in one program."""
    session = session or Session()
    session.plan(len(config.methods))
    found = {
        method.value: session.run(
            method.value, method.label, lambda tell, m=method: _method(config, m, tell)
        )
        for method in config.methods
    }
    return Results(
        "logistic",
        asdict(config),
        [Run(**run) for entry in found.values() for run in entry["runs"]],
        {name: entry["summary"] for name, entry in found.items()},
        {"grid": {name: entry["grid"] for name, entry in found.items()}},
        headline=HEADLINE,
        paper=PAPER_IN_WORDS,
    )


def _method(config: LogisticConfig, method: Method, tell: ProgressReport) -> dict[str, Any]:
    """The runs of the best grid point, their summary, and the scores of the whole grid."""
    problem, split = make_data(config)
    metrics = {
        f"{part}_auc": lambda params, data=data: area_under_curve(
            mean_prediction(params, data), data.labels
        )
        for part, data in zip(("train", "test"), split, strict=True)
    }
    grid = _grid(config, method)
    outcome = sweep(
        problem,
        InMemory.create(split.train),
        lambda key: problem.init(key, 5, scale=config.initial_scale),
        _optimizer_of(config, method, problem),
        grid,
        num_seeds=config.seeds,
        num_steps=config.iterations,
        record_every=min(config.record_every, config.iterations),
        metrics=metrics,
        objective=ELBO(config.num_particles),
        max_seconds=config.budget,
        on_record=tell,
    )
    scores = {
        name: np.nan_to_num(outcome.curves[name][..., -config.average_last :].mean(axis=-1))
        for name in metrics
    }
    best = int(scores["train_auc"].mean(axis=1).argmax())
    iterations = int(outcome.iterations[-1])
    return {
        "runs": [asdict(run) for run in _runs(method, outcome, grid, best)],
        "summary": {
            **{name: mean_and_std(values[best]) for name, values in scores.items()},
            **_settings(grid, best),
            "iterations": iterations,
            "microseconds_per_iteration": 1e6
            * float(outcome.seconds[-1])
            / (outcome.rejected.size * iterations),
            "rejected_steps": int(outcome.rejected[best].sum()),
        },
        "grid": [
            {**_settings(grid, g), **{name: mean_and_std(v[g]) for name, v in scores.items()}}
            for g in range(len(grid.damping))
        ],
    }


def _settings(grid: GridPoint, index: int) -> dict[str, Any]:
    return {
        "learning_rate": float(np.float32(grid.learning_rate[index]).astype(str)),
        "damping": float(np.float32(grid.damping[index]).astype(str)),
        "optimizer": RULES[int(grid.rmsprop[index])],
    }


def _runs(method: Method, outcome: Sweep, grid: GridPoint, best: int) -> list[Run]:
    settings = _settings(grid, best)
    rate = settings.pop("learning_rate")
    return [
        Run(
            method=method.value,
            seed=seed,
            learning_rate=rate,
            params_sha256=params_sha256(jax.tree.map(lambda x, s=seed: x[best, s], outcome.params)),
            curves={
                "iteration": outcome.iterations.tolist(),
                "seconds": (outcome.seconds / outcome.rejected.size).tolist(),
                **{name: values[best, seed].tolist() for name, values in outcome.curves.items()},
            },
            settings=settings,
        )
        for seed in range(outcome.rejected.shape[1])
    ]


def table(results: Results) -> tuple[list[str], list[list[str]]]:
    """Table 1: AUC over the runs, beside the paper's."""
    heads = ["Method", "Train AUC", "Test AUC", "Paper: train", "Paper: test", "Chosen"]
    plus_minus = lambda mean, std: f"{mean:.3f} ± {std:.3f}"
    rows = []
    for name, entry in results.summary.items():
        method = Method(name)
        paper = PAPER.get(method)
        chosen = f"{entry['optimizer']}, rate {entry['learning_rate']:g}"
        if method is not Method.GRADIENT:
            chosen += f", damping {entry['damping']:g}"
        rows.append(
            [
                method.label,
                *(plus_minus(**entry[key]) for key in ("train_auc", "test_auc")),
                *(plus_minus(*paper[key]) if paper else "–" for key in ("train_auc", "test_auc")),
                chosen,
            ]
        )
    return heads, rows


def draw(results: Results, folder: Path) -> list[Path]:
    """The appendix's figure: test AUC against iterations, mean and spread over the runs."""
    return draw_panels(
        results, folder, "logistic_test_auc", {"test_auc": "test AUC"}, ("iteration",)
    )
