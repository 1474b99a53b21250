"""The variational autoencoder, Section 5.2, and the appendix's run without moving averages."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from vpng import optimizers
from vpng.checks import finite_scalar, positive_integer
from vpng.datasets import Images, load_digits, load_mnist
from vpng.errors import expected
from vpng.experiments.contest import GridPoint, Rules, Train, contest, loop_trainer, summarise
from vpng.experiments.figures import COLOURS, DASHES, house_style, save
from vpng.experiments.methods import Method
from vpng.experiments.results import Headline, Results, Run
from vpng.experiments.rules import RULES, adam_or_rmsprop
from vpng.experiments.session import Session
from vpng.fisher import Predictive, Probed, Variational
from vpng.kronecker import Kronecker, KroneckerTridiagonal, LogarithmicRank, PerFactor, discover
from vpng.objective import ELBO
from vpng.problem import Parameters
from vpng.problems import VariationalAutoencoder, decode, paper_vae, reconstruct

METHODS = (
    Method.GRADIENT,
    Method.NATURAL_GRADIENT,
    Method.VPNG,
    Method.VPNG_BLOCK,
    Method.HESSIAN_FREE,
)
NUM_PICTURES = 10
LOADERS: dict[str, Callable[[], Images]] = {"digits": load_digits, "mnist": load_mnist}
HEADLINE = Headline("test_elbo", "test ELBO per image", axes=("seconds", "iteration"))
PAPER = (
    "On MNIST within 1,000 seconds VPNG is ahead of the gradient and of the natural gradient on "
    "training and test images, against time as against iterations (Figure 2; no table is given).",
    "The Hessian-free method is still far below an ELBO of -200 after 1,000 seconds.",
)
PAPER_WITHOUT_AVERAGES = (
    "Without moving averages VPNG does as well as with them; the natural gradient does much worse "
    "(appendix, figure; no numbers are given).",
)
"""What the paper says of its own runs."""


class DataSet(StrEnum):
    """Which images."""

    DIGITS = "digits"
    MNIST = "mnist"


@dataclass(frozen=True)
class VaeConfig:
    """The experiment's settings, the paper's where it gives them.

    Attributes:
        data: which images, binarised at 0.5.
        batch_size: images for a step.
        num_particles: Monte Carlo samples for the ELBO and its gradient.
        budget: seconds of each method's chosen run, without compilation and evaluation.
        pilot: part of the budget for which every grid point is tried before the choice; 1 runs
            all of them to the end, as the paper does.
        record_every: steps between two evaluations.
        num_train_images: fixed training images for the train ELBO.
        evaluation_particles: draws for the train and test ELBO.
        learning_rates: the grid of step sizes, the same for every method.
        rules: what is put on top of each direction, part of the grid.
        damping: mu, added to each Kronecker factor.
        decay: of the moving averages of the factors; None for none.
        statistics_period: steps between two refreshes of factors and inverses.
        low_rank: keep K ln(dim) eigenvectors of large factors with this K; None for all.
        iterations: most steps of a run.
        seeds: number of runs of the chosen grid point.
        methods: which to run.
    """

    data: DataSet = DataSet.DIGITS
    batch_size: int = 600
    num_particles: int = 10
    budget: float = 20.0
    pilot: float = 0.15
    record_every: int = 100
    num_train_images: int = 10_000
    evaluation_particles: int = 2
    learning_rates: tuple[float, ...] = (0.001, 0.003, 0.01)
    rules: tuple[str, ...] = RULES
    damping: float = 0.1
    decay: float | None = 0.9
    statistics_period: int = 5
    low_rank: float | None = None
    iterations: int = 1_000_000
    seeds: int = 1
    methods: tuple[Method, ...] = METHODS

    def __post_init__(self) -> None:
        names = (
            "batch_size num_particles record_every num_train_images evaluation_particles "
            "statistics_period iterations seeds"
        )
        for name in names.split():
            positive_integer(name, getattr(self, name))
        finite_scalar("budget", self.budget, minimum=0.0, strict=True)
        finite_scalar("damping", self.damping, minimum=0.0, strict=True)
        if not 0.0 < self.pilot <= 1.0:
            raise expected("pilot", "a part of the budget in (0, 1]", self.pilot)
        for rate in self.learning_rates:
            finite_scalar("learning_rates", rate, minimum=0.0, strict=True)
        if self.data not in set(DataSet):
            raise expected("data", f"one of {', '.join(DataSet)}", repr(self.data))


def without_averages(**settings: Any) -> VaeConfig:
    """The settings of the appendix's ablation: no moving averages of the factors."""
    return VaeConfig(**{"decay": None, **settings})


def make_optimizer(
    config: VaeConfig,
    method: Method,
    problem: VariationalAutoencoder,
    parameters: Parameters,
    batch: Array,
    learning_rate: Float[Array, ""] | float,
    rmsprop: Bool[Array, ""] | bool,
) -> optax.GradientTransformation:
    """The optimizer of one method at one grid point, which may be traced."""
    on_top = adam_or_rmsprop(rmsprop)
    options: dict[str, Any] = {
        "factor_damping": PerFactor(),
        "decay": config.decay,
        "statistics_period": config.statistics_period,
        "inverse_period": config.statistics_period,
    }
    if config.low_rank is not None:
        options["rank"] = LogarithmicRank(config.low_rank)
    match method:
        case Method.GRADIENT:
            return optimizers.gradient(learning_rate, rule=on_top)
        case Method.HESSIAN_FREE:
            return optimizers.hessian_free(
                problem,
                learning_rate,
                rule=on_top,
                objective=ELBO(config.num_particles),
                damping=config.damping,
                max_steps=10,
            )
        case Method.NATURAL_GRADIENT:
            metric = Variational(Probed(1))
            structure = discover(problem, parameters, batch, metric)
            return optimizers.natural_gradient(
                problem,
                learning_rate,
                rule=on_top,
                metric=metric,
                curvature=KroneckerTridiagonal(structure, **options),
                damping=config.damping,
            )
        case Method.VPNG | Method.VPNG_BLOCK:
            metric = Predictive(Probed(1), num_particles=1)
            structure = discover(problem, parameters, batch, metric)
            kind = KroneckerTridiagonal if method is Method.VPNG else Kronecker
            curvature = kind(structure, diagonal_outputs=True, **options)
            return optimizers.vpng(
                problem,
                learning_rate,
                rule=on_top,
                metric=metric,
                curvature=curvature,
                damping=config.damping,
            )


def mean_elbo(
    problem: VariationalAutoencoder, images: Float[Array, "n d"], num_particles: int
) -> Callable[[Parameters, PRNGKeyArray], Float[Array, ""]]:
    """The ELBO per image over all of `images`, in parts that fit the caches."""
    part = 500
    count = images.shape[0] - images.shape[0] % part if images.shape[0] > part else images.shape[0]
    parts = images[:count].reshape(-1, min(part, count), images.shape[1])
    rest = images[count:]
    objective = ELBO(num_particles)

    def evaluate(parameters: Parameters, rng_key: PRNGKeyArray) -> Array:
        keys = jax.random.split(rng_key, parts.shape[0] + 1)
        losses = jax.lax.map(
            lambda pair: objective.estimate(pair[0], problem, parameters, pair[1]).loss,
            (keys[:-1], parts),
        )
        total = jnp.sum(losses) * parts.shape[1]
        if rest.shape[0]:
            total += objective.estimate(keys[-1], problem, parameters, rest).loss * rest.shape[0]
        return -total / images.shape[0]

    return evaluate


def run(config: VaeConfig, session: Session | None = None) -> Results:
    """Every method: all grid points for the pilot time, then the best for the whole budget."""
    session = session or Session()
    images = LOADERS[config.data]()
    chosen = np.random.default_rng(0).permutation(len(images.train))[: config.num_train_images]
    evaluated = {
        "train_elbo": jnp.asarray(images.train[chosen]),
        "test_elbo": jnp.asarray(images.test),
    }

    def trainer(method: Method) -> Train:
        problem, parameters, data = paper_vae(jax.random.key(0), images.train)
        batch_size = min(config.batch_size, len(data))

        def at(learning_rate: Array, rmsprop: Array) -> optax.GradientTransformation:
            batch = data[:batch_size]
            return make_optimizer(
                config, method, problem, parameters, batch, learning_rate, rmsprop > 0.5
            )

        return loop_trainer(
            problem,
            parameters,
            data,
            at,
            lambda key: paper_vae(key, images.train).parameters,
            objective=ELBO(config.num_particles),
            batch_size=batch_size,
            record_every=config.record_every,
            metrics={
                name: mean_elbo(problem, part, config.evaluation_particles)
                for name, part in evaluated.items()
            },
            show="test_elbo",
            pictures=lambda parameters: _pictures(images, parameters),
        )

    points = [GridPoint(rate, rule) for rule in config.rules for rate in config.learning_rates]
    rules = Rules(
        config.methods, points, config.seeds, config.budget, config.iterations, config.pilot
    )
    outcome = contest(session, rules, trainer)
    pictures = {name: finished[0].pictures for name, finished in outcome.trained.items()}
    return Results(
        "vae" if config.decay is not None else "vae-no-ema",
        asdict(config),
        outcome.runs,
        summarise(outcome, ("test_elbo", "train_elbo")),
        {"grid": outcome.grid, "race": race(outcome.runs)},
        {"shape": images.image_shape, "originals": images.test[:NUM_PICTURES], **pictures},
        HEADLINE,
        PAPER if config.decay is not None else PAPER_WITHOUT_AVERAGES,
    )


def _pictures(images: Images, parameters: Parameters) -> dict[str, Float[np.ndarray, "n d"]]:
    """Reconstructions of test images and means of draws from the prior."""
    problem = paper_vae(jax.random.key(0), images.train).problem
    latent = jax.random.normal(jax.random.key(0), (NUM_PICTURES, problem.latent_dim))
    shown = jnp.asarray(images.test[:NUM_PICTURES])
    return {
        "reconstructions": np.asarray(reconstruct(problem, parameters, shown)),
        "samples": np.asarray(decode(problem, parameters.model, latent)),
    }


def race(runs: list[Run]) -> dict[str, Any]:
    """How each method compares with the gradient: time to its final test ELBO, and the lead."""
    base = [run for run in runs if run.method == Method.GRADIENT]
    if not base:
        return {}
    target = float(np.mean([run.curves["test_elbo"][-1] for run in base]))
    budget = float(np.mean([run.curves["seconds"][-1] for run in base]))
    entries = {}
    for method in dict.fromkeys(run.method for run in runs):
        mine = [run for run in runs if run.method == method]
        reached = [time for run in mine if (time := _first_time(run, target)) is not None]
        mean = float(np.mean(reached)) if len(reached) == len(mine) else None
        entries[method] = {
            "seconds_to_gradient_final": mean,
            "share_of_gradient_time": None if mean is None else mean / budget,
            "lead_in_nats": float(np.mean([r.curves["test_elbo"][-1] for r in mine])) - target,
        }
    return {"gradient_final_test_elbo": target, "methods": entries}


def _first_time(run: Run, target: float) -> float | None:
    reached = np.asarray(run.curves["test_elbo"]) >= target
    return float(np.asarray(run.curves["seconds"])[reached.argmax()]) if reached.any() else None


def table(results: Results) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of the printed table."""
    heads = ["Method", "Test ELBO", "Train ELBO", "Iterations", "ms / iteration", "Chosen"]
    rows = [
        [
            Method(name).label,
            f"{entry['test_elbo']:.2f}",
            f"{entry['train_elbo']:.2f}",
            str(entry["iterations"]),
            f"{1000 * entry['seconds_per_iteration']:.1f}",
            f"{entry['optimizer']}, rate {entry['best_learning_rate']:g}",
        ]
        for name, entry in results.summary.items()
    ]
    return heads, rows


def draw(results: Results, folder: Path) -> list[Path]:
    """The learning curves, and what each method's model makes of images."""
    return [*_draw_curves(results, folder), *_draw_pictures(results, folder)]


def _draw_pictures(results: Results, folder: Path) -> list[Path]:
    """A row of test images, then reconstructions and prior samples of every method."""
    import matplotlib.pyplot as plt

    shape = results.artifacts["shape"]
    rows = [("test images", results.artifacts["originals"])]
    for name in results.summary:
        pictures = results.artifacts[name]
        rows.append((f"{Method(name).label}: reconstructions", pictures["reconstructions"]))
        rows.append((f"{Method(name).label}: samples", pictures["samples"]))
    with house_style():
        figure, axes = plt.subplots(len(rows), 1, figsize=(7, 0.95 * len(rows)))
        for panel, (label, images) in zip(axes, rows, strict=True):
            strip = np.concatenate([image.reshape(shape) for image in images], axis=1)
            panel.imshow(strip, cmap="gray_r", vmin=0, vmax=1)
            panel.set_title(label, fontsize=8, loc="left", pad=2)
            panel.axis("off")
        return save(figure, folder, results.experiment.replace("-", "_") + "_pictures")


def _draw_curves(results: Results, folder: Path) -> list[Path]:
    """Train and test ELBO against seconds and iterations."""
    import matplotlib.pyplot as plt

    with house_style():
        figure, axes = plt.subplots(2, 2, figsize=(10, 7), sharey="row")
        for row, metric in enumerate(("train_elbo", "test_elbo")):
            for column, axis in enumerate(("seconds", "iteration")):
                panel = axes[row, column]
                finals = []
                for run in results.runs:
                    method = Method(run.method)
                    panel.plot(
                        run.curves[axis],
                        run.curves[metric],
                        color=COLOURS[method],
                        linestyle=DASHES[method],
                        label=method.label if run.seed == 0 else None,
                    )
                    finals.append(run.curves[metric][-1])
                best = max(finals)
                panel.set(
                    xlabel=axis if axis == "seconds" else "iterations",
                    ylabel=metric.replace("_elbo", " ELBO per image"),
                    ylim=(best - 1.2 * abs(best), best + 0.05 * abs(best)),
                )
        axes[0, 0].legend()
        return save(figure, folder, results.experiment.replace("-", "_") + "_curves")
