"""All methods on a problem of your own: does VPNG help on *your* model?"""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from vpng import optimizers
from vpng.checks import finite_scalar, output_folder, positive_integer
from vpng.errors import InputError, expected
from vpng.numerics.cost import forming_pays
from vpng.objective import ELBO
from vpng.optimizers import LearningRate
from vpng.paper.experiments.contest import GridPoint, Rules, Train, contest, loop_trainer, summarise
from vpng.paper.experiments.figures import draw_panels
from vpng.paper.experiments.journal import Journal
from vpng.paper.experiments.networks import Factored, network_optimizer
from vpng.paper.experiments.registry import Experiment
from vpng.paper.experiments.results import Headline, Results, Table
from vpng.paper.experiments.rules import RULES, adam_or_rmsprop
from vpng.paper.experiments.session import Session, Watcher, silent
from vpng.paper.experiments.store import store
from vpng.plot.methods import Method, label_of
from vpng.problem import AbstractProblem, Parameters
from vpng.training import AbstractData, InMemory
from vpng.training.data import as_data
from vpng.training.loop import Measure
from vpng.training.mean_elbo import mean_elbo
from vpng.transform import GaussNewton, Hessian
from vpng.transform.hessian_free import AbstractProduct

METHODS = (Method.GRADIENT, Method.NATURAL_GRADIENT, Method.VPNG, Method.HESSIAN_FREE)

_PRODUCTS = 100
"""A problem with local latents that is dearer to solve is a network and gets Kronecker factors."""


class WholeCall(AbstractData):
    """The arguments of a NumPyro model as data that always come whole.

    Attributes:
        call: the arguments.
        num_data: number of observations in them.
    """

    call: PyTree
    num_data: int = eqx.field(static=True)

    def __len__(self) -> int:
        return self.num_data

    def take(self, indices: Array) -> PyTree:
        return self.call

    def everything(self) -> PyTree:
        return self.call


@dataclass(frozen=True)
class Course:
    """What is raced on.

    Attributes:
        problem: the model and its approximation.
        params: the first parameters, or a function that makes them from a key, so that seeds differ
            in them too.
        data: what it is fitted to.
        test: data that no step sees; the methods are judged on them if they are there.
        product: what the Hessian-free method multiplies with.
    """

    problem: AbstractProblem
    params: Parameters | Callable[[Array], Parameters]
    data: PyTree | AbstractData
    test: PyTree | None = None
    product: AbstractProduct = GaussNewton()

    @classmethod
    def from_numpyro(cls, model: Callable, guide: Callable, *args: Any, **kwargs: Any) -> "Course":
        """The course of a NumPyro model and guide, called with these arguments in every step.

        Raises:
            InputError: naming a site that does not fit.
        """
        from vpng.numpyro import SVI, Call

        svi = SVI(model, guide)
        start = lambda rng_key: svi.init(rng_key, *args, **kwargs).optim_state.accepted
        start(jax.random.key(0))
        problem = svi.problem
        if problem is None:
            raise InputError("model: expected a model that NumPyro can trace, got none.")
        data = WholeCall(Call(args, kwargs, {}, {}), problem.num_data)
        # A traced prior may depend on other latents, for which there is no Gauss-Newton part.
        return cls(problem, start, data, product=Hessian())

    def init(self, rng_key: Array) -> Parameters:
        """The first parameters of one seed."""
        return self.params(rng_key) if callable(self.params) else self.params


@dataclass(frozen=True)
class RaceConfig:
    """The protocol, the same for every method.

    Attributes:
        budget: seconds of each chosen run, without compilation and evaluation.
        iterations: most steps of a run.
        pilot: part of the budget for which every grid point is tried before the choice.
        seeds: runs of the chosen grid point.
        learning_rates: the grid of step sizes; each decays like 1 / sqrt(1 + t / decay_steps).
        decay_steps: the steps after which a step size has shrunk by sqrt(2).
        rules: what is put on top of each direction, part of the grid.
        damping: mu, for the methods that have one.
        batch_size: data for a step; None for all.
        num_particles: Monte Carlo samples for the ELBO and its gradient.
        evaluation_particles: draws for the ELBO that is reported.
        evaluated_data: most data for the ELBO that is reported.
        record_every: steps between two evaluations.
        methods: which to run.
    """

    budget: float = 10.0
    iterations: int = 1_000_000
    pilot: float = 0.2
    seeds: int = 3
    learning_rates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3)
    decay_steps: int = 200
    rules: tuple[str, ...] = RULES
    damping: float = 1e-2
    batch_size: int | None = None
    num_particles: int = 10
    evaluation_particles: int = 20
    evaluated_data: int = 10_000
    record_every: int = 20
    methods: tuple[Method, ...] = METHODS

    def __post_init__(self) -> None:
        names = (
            "iterations seeds decay_steps num_particles evaluation_particles evaluated_data "
            "record_every"
        )
        for name in names.split():
            positive_integer(name, getattr(self, name))
        if self.batch_size is not None:
            positive_integer("batch_size", self.batch_size)
        finite_scalar("budget", self.budget, minimum=0.0, strict=True)
        finite_scalar("damping", self.damping, minimum=0.0, strict=False)
        if not 0.0 < self.pilot <= 1.0:
            raise expected("pilot", "a part of the budget in (0, 1]", self.pilot)
        for rate in self.learning_rates:
            finite_scalar("learning_rates", rate, minimum=0.0, strict=True)
        unknown = [rule for rule in self.rules if rule not in RULES]
        if unknown or not self.rules:
            raise expected("rules", f"names among {', '.join(RULES)}", self.rules)


def race(
    problem: AbstractProblem,
    params: Parameters | Callable[[Array], Parameters],
    data: PyTree,
    *,
    test: PyTree | None = None,
    name: str = "race",
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher = silent,
    **settings: Any,
) -> Results:
    """Race all methods on a problem, each with its best step size.

    Every method tries the same grid for a part of the budget; what is best on the training ELBO
    then runs for all of it, seed by seed. With `out` the folder gets the files that every
    experiment writes, and the page `report.html`.

    Args:
        problem: the model and its approximation.
        params: the first parameters, or a function that makes them from a key.
        data: what it is fitted to.
        test: data that no step sees, to judge the methods on.
        name: of the race, for tables and the page.
        out: a folder for results, table and figures.
        resume: go on with the runs that are in `out`.
        watcher: called with the status of the race as it goes.
        **settings: fields of `RaceConfig`, for instance `budget=30.0`.

    Raises:
        InputError: if an argument does not fit.
    """
    course = Course(problem, params, data, test)
    return race_on(course, name=name, out=out, resume=resume, watcher=watcher, **settings)


def race_on(
    course: Course,
    *,
    name: str = "race",
    out: str | Path | None = None,
    resume: bool = False,
    watcher: Watcher = silent,
    **settings: Any,
) -> Results:
    """`race` on a course, for instance `Course.from_numpyro(model, guide, x, y)`.

    Raises:
        InputError: if an argument does not fit.
    """
    config = RaceConfig(**settings)
    if out is None:
        return run_race(course, config, Session(None, watcher), name)
    from vpng.paper.report import write_report

    folder = output_folder(Path(out))
    journal = Journal.open(folder, name, asdict(config), resume=resume)
    with journal.withdrawn_if_refused():
        results = run_race(course, config, Session(journal, watcher), name)
    store(EXPERIMENT, results, folder)
    write_report(folder)
    return results


def run_race(course: Course, config: RaceConfig, session: Session, name: str) -> Results:
    """Hold the race on a course."""
    first = course.init(jax.random.key(0))
    data = as_data(course.data)
    size = len(data)
    batch_size = None if config.batch_size is None else min(config.batch_size, size)
    few = data.take(jnp.arange(batch_size or size))
    evaluated = {"train_elbo": data}
    if course.test is not None:
        evaluated["test_elbo"] = as_data(course.test)
    judged = list(evaluated)[-1]

    def trainer(method: Method) -> Train:
        def at(learning_rate: Array, rmsprop: Array) -> optax.GradientTransformation:
            decaying = lambda step: learning_rate / jnp.sqrt(1.0 + step / config.decay_steps)
            return _optimizer(config, method, course, first, few, decaying, rmsprop > 0.5)

        return loop_trainer(
            course.problem,
            first,
            data,
            at,
            course.init,
            objective=ELBO(config.num_particles),
            batch_size=batch_size,
            record_every=config.record_every,
            metrics={
                name: _mean_elbo(config, course.problem, part) for name, part in evaluated.items()
            },
            show=judged,
        )

    points = [GridPoint(rate, rule) for rule in config.rules for rate in config.learning_rates]
    rules = Rules(
        config.methods, points, config.seeds, config.budget, config.iterations, config.pilot
    )
    outcome = contest(session, rules, trainer)
    label = f"{judged.removesuffix('_elbo')} ELBO per datum"
    about = {
        "problem": type(course.problem).__name__,
        "num_data": size,
        "num_parameters": _count(first),
    }
    return Results(
        name,
        {**asdict(config), **about},
        outcome.runs,
        summarise(outcome, tuple(evaluated)),
        {"grid": outcome.grid, "findings": outcome.findings},
        headline=Headline(judged, label, axes=("seconds", "iteration")),
    )


def _mean_elbo(config: RaceConfig, problem: AbstractProblem, data: AbstractData) -> Measure:
    if isinstance(data, InMemory):
        some = data.take(jnp.arange(min(len(data), config.evaluated_data)))
        return mean_elbo(problem, some, config.evaluation_particles)
    objective, whole = ELBO(config.evaluation_particles), data.everything()
    return lambda params, key: -objective.estimate(key, problem, params, whole).loss


def _count(params: Parameters) -> int:
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(params))


def _optimizer(
    config: RaceConfig,
    method: Method,
    course: Course,
    params: Parameters,
    batch: PyTree,
    learning_rate: LearningRate,
    rmsprop: Array,
) -> optax.GradientTransformation:
    """By shape: Kronecker factors for networks, else whatever `auto` takes."""
    problem = course.problem
    if problem.local and not forming_pays(_count(params), _PRODUCTS):
        factored = Factored(
            damping=config.damping,
            num_particles=config.num_particles,
            product=course.product,
            independent_outputs=False,
        )
        return network_optimizer(factored, method, problem, params, batch, learning_rate, rmsprop)
    rule = adam_or_rmsprop(rmsprop)
    match method:
        case Method.GRADIENT:
            return optimizers.gradient(learning_rate, rule=rule)
        case Method.NATURAL_GRADIENT:
            return optimizers.natural_gradient(
                problem, learning_rate, rule=rule, damping=config.damping
            )
        case Method.HESSIAN_FREE:
            return optimizers.hessian_free(
                problem,
                learning_rate,
                rule=rule,
                damping=config.damping,
                objective=ELBO(config.num_particles),
                product=course.product,
                max_steps=10,
            )
        case _:
            return optimizers.vpng(problem, learning_rate, rule=rule, damping=config.damping)


def table(results: Results) -> Table:
    """The heads and rows of the printed table."""
    labels = {"test_elbo": "Test ELBO", "train_elbo": "Train ELBO"}
    metrics = [name for name in labels if name in results.runs[0].curves]
    rows = [
        [
            label_of(name),
            *(f"{entry[metric]:.4f}" for metric in metrics),
            str(entry["iterations"]),
            f"{1000 * entry['seconds_per_iteration']:.2f}",
            f"{entry['optimizer']}, rate {entry['best_learning_rate']:g}",
        ]
        for name, entry in results.summary.items()
    ]
    return [
        "Method",
        *(labels[name] for name in metrics),
        "Iterations",
        "ms / iteration",
        "Chosen",
    ], rows


def draw(results: Results, folder: Path) -> list[Path]:
    """Every ELBO against seconds and iterations."""
    present = [name for name in ("train_elbo", "test_elbo") if name in results.runs[0].curves]
    labels = {name: name.replace("_elbo", " ELBO per datum") for name in present}
    return draw_panels(results, folder, "race_curves", labels)


EXPERIMENT = Experiment(RaceConfig, run_race, table, draw, (), METHODS)


def load_course(target: str) -> Course:
    """The course that `module:attribute` names.

    The attribute is a `Course`, a tuple (problem, params, data) or (problem, params, data, test), a
    tuple (model, guide, arguments) for NumPyro, or a function without arguments that returns one of
    them.

    Raises:
        InputError: if there is no such thing, with what was expected.
    """
    module_name, colon, attribute = target.partition(":")
    if not colon or not attribute or not all(map(str.isidentifier, module_name.split("."))):
        raise expected("TARGET", "module:attribute, for instance my_module:problem", repr(target))
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise InputError(
            f"TARGET: expected a module {module_name} that can be imported from {Path.cwd()} or "
            "the environment, found no such module."
        ) from error
    except AttributeError as error:
        raise InputError(
            f"TARGET: expected {attribute} in {module_name}, got none there."
        ) from error
    if callable(found) and not isinstance(found, Course | AbstractProblem):
        found = found()
    if isinstance(found, Course):
        return found
    if (
        isinstance(found, Sequence)
        and len(found) in (3, 4)
        and isinstance(found[0], AbstractProblem)
    ):
        return Course(*found)
    if (
        isinstance(found, Sequence)
        and len(found) == 3
        and callable(found[0])
        and callable(found[1])
    ):
        model, guide, arguments = found
        return Course.from_numpyro(model, guide, *arguments)
    raise expected(
        target,
        "(problem, params, data), with test data as a fourth, (model, guide, arguments), "
        "or a function that returns them",
        type(found).__name__,
    )
