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
from jaxtyping import Array, Float

from vpng.checks import finite_scalar, positive_integer
from vpng.errors import expected
from vpng.objective import ELBO
from vpng.paper.datasets import Images, load_digits, load_mnist
from vpng.paper.experiments.contest import GridPoint, Rules, Train, contest, loop_trainer, summarise
from vpng.paper.experiments.networks import (
    Factored,
    draw_curves,
    elbo_table,
    network_optimizer,
    race,
)
from vpng.paper.experiments.results import Headline, Results
from vpng.paper.experiments.rules import RULES
from vpng.paper.experiments.session import Session
from vpng.plot.look import house_style, save
from vpng.plot.methods import Method
from vpng.problem import Parameters
from vpng.problems import decode, paper_vae, reconstruct
from vpng.training.mean_elbo import mean_elbo
from vpng.transform.trust_region import HALF_A_NAT

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
        budget: seconds of each method's chosen run, without compilation and evaluation; None if
            `iterations` decides, whatever the speed of the machine.
        pilot: part of the budget for which every grid point is tried; the better half goes on for
            twice as long, until one is left. 1 runs all of them to the end, as the paper does.
        record_every: steps between two evaluations.
        num_train_images: fixed training images for the train ELBO.
        evaluation_particles: draws for the train and test ELBO.
        learning_rates: the grid of step sizes, the same for every method.
        rules: what is put on top of each direction, part of the grid.
        damping: mu, added to each Kronecker factor.
        trust_radius: the longest step of a natural gradient in its own metric, in nats per datum;
            None for no limit.
        decay: of the moving averages of the factors; None for none.
        statistics_period: steps between two refreshes of the factors.
        inverse_period: steps between two refreshes of their inverses.
        low_rank: keep K ln(dim) eigenvectors of large factors with this K; None for all.
        iterations: most steps of a run.
        seeds: number of runs of the chosen grid point.
        methods: which to run.
    """

    data: DataSet = DataSet.DIGITS
    batch_size: int = 600
    num_particles: int = 10
    budget: float | None = 20.0
    pilot: float = 0.1
    record_every: int = 100
    num_train_images: int = 10_000
    evaluation_particles: int = 2
    learning_rates: tuple[float, ...] = (0.001, 0.003, 0.01)
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
            "batch_size num_particles record_every num_train_images evaluation_particles "
            "statistics_period inverse_period iterations seeds"
        )
        for name in names.split():
            positive_integer(name, getattr(self, name))
        if self.budget is not None:
            finite_scalar("budget", self.budget, minimum=0.0, strict=True)
        finite_scalar("damping", self.damping, minimum=0.0, strict=True)
        if self.trust_radius is not None:
            finite_scalar("trust_radius", self.trust_radius, minimum=0.0, strict=True)
        if not 0.0 < self.pilot <= 1.0:
            raise expected("pilot", "a part of the budget in (0, 1]", self.pilot)
        for rate in self.learning_rates:
            finite_scalar("learning_rates", rate, minimum=0.0, strict=True)
        if self.data not in set(DataSet):
            raise expected("data", f"one of {', '.join(DataSet)}", repr(self.data))


def without_averages(**settings: Any) -> VaeConfig:
    """The settings of the appendix's ablation: no moving averages of the factors."""
    return VaeConfig(**{"decay": None, **settings})


def run(config: VaeConfig, session: Session | None = None) -> Results:
    """Every method: successive halving over the grid, then the best point for the whole budget."""
    session = session or Session()
    images = LOADERS[config.data]()
    chosen = np.random.default_rng(0).permutation(len(images.train))[: config.num_train_images]
    evaluated = {
        "train_elbo": jnp.asarray(images.train[chosen]),
        "test_elbo": jnp.asarray(images.test),
    }

    factored = Factored(
        damping=config.damping,
        decay=config.decay,
        radius=config.trust_radius,
        statistics_period=config.statistics_period,
        inverse_period=config.inverse_period,
        low_rank=config.low_rank,
        num_particles=config.num_particles,
    )

    def trainer(method: Method) -> Train:
        problem, parameters, data = paper_vae(jax.random.key(0), images.train)
        batch_size = min(config.batch_size, len(data))

        def at(learning_rate: Array, rmsprop: Array) -> optax.GradientTransformation:
            batch = data[:batch_size]
            return network_optimizer(
                factored, method, problem, parameters, batch, learning_rate, rmsprop > 0.5
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
            layout=session.layout,
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
        {"grid": outcome.grid, "race": race(outcome.runs), "findings": outcome.findings},
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


table = elbo_table


def draw(results: Results, folder: Path) -> list[Path]:
    """The learning curves, and what each method's model makes of images."""
    return [*draw_curves(results, folder, "image"), *_draw_pictures(results, folder)]


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
