"""What the experiments with networks share: optimizers, the ELBO of a set, the race, the curves."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optax
from jaxtyping import Array, Bool, PyTree

from vpng import optimizers
from vpng.errors import expected
from vpng.fisher import Predictive, Probed, Variational
from vpng.kronecker import (
    AbstractFactorDamping,
    AbstractKronecker,
    Kronecker,
    KroneckerTridiagonal,
    LogarithmicRank,
    PerFactor,
    Structure,
    discover,
    in_eigenbasis,
)
from vpng.objective import ELBO
from vpng.optimizers import LearningRate
from vpng.paper.experiments.crossing import first_crossing
from vpng.paper.experiments.figures import draw_panels
from vpng.paper.experiments.results import Results, Run
from vpng.paper.experiments.rules import adam_or_rmsprop
from vpng.plot.methods import Method
from vpng.problem import AbstractProblem, Parameters
from vpng.transform.hessian_free import AbstractProduct, GaussNewton
from vpng.transform.trust_region import HALF_A_NAT


@dataclass(frozen=True)
class Factored:
    """How the Kronecker factors are made and inverted.

    Attributes:
        damping: mu.
        factor_damping: how mu is shared between the factors.
        decay: of the moving averages of the factors; None for none.
        statistics_period: steps between two refreshes of the factors.
        inverse_period: steps between two refreshes of their inverses.
        low_rank: keep K ln(dim) eigenvectors of large factors with this K; None for all.
        radius: the longest step of a natural gradient in its own metric, in nats per datum; None
            for no limit.
        num_particles: Monte Carlo samples for the Hessian-free products.
        product: what the Hessian-free method multiplies with.
        independent_outputs: whether the data are independent given the outputs of the last layer,
            whose factor then is diagonal.
    """

    damping: float = 0.1
    factor_damping: AbstractFactorDamping = PerFactor()
    decay: float | None = 0.9
    statistics_period: int = 5
    inverse_period: int = 20
    low_rank: float | None = None
    radius: float | None = HALF_A_NAT
    num_particles: int = 10
    product: AbstractProduct = GaussNewton()
    independent_outputs: bool = True


def network_optimizer(
    factored: Factored,
    method: Method,
    problem: AbstractProblem,
    parameters: Parameters,
    batch: PyTree,
    learning_rate: LearningRate,
    rmsprop: Bool[Array, ""] | bool,
) -> optax.GradientTransformation:
    """The optimizer of one method at one grid point, which may be traced.

    Dense layers in a chain have the paper's block-tridiagonal curvature, other networks the
    block-diagonal one.
    """
    on_top = adam_or_rmsprop(rmsprop)
    options: dict[str, Any] = {
        "factor_damping": factored.factor_damping,
        "decay": factored.decay,
        "statistics_period": factored.statistics_period,
        "inverse_period": factored.inverse_period,
    }
    if factored.low_rank is not None:
        options["rank"] = LogarithmicRank(factored.low_rank)
    match method:
        case Method.GRADIENT:
            return optimizers.gradient(learning_rate, rule=on_top)
        case Method.HESSIAN_FREE:
            return optimizers.hessian_free(
                problem,
                learning_rate,
                rule=on_top,
                objective=ELBO(factored.num_particles),
                product=factored.product,
                damping=factored.damping,
                max_steps=10,
            )
        case Method.NATURAL_GRADIENT:
            metric = Variational(Probed(num_probes=1))
            structure = discover(problem, parameters, batch, metric)
            return optimizers.natural_gradient(
                problem,
                learning_rate,
                rule=on_top,
                metric=metric,
                curvature=_tridiagonal_if_chain(structure)(structure, **options),
                damping=factored.damping,
                radius=factored.radius,
            )
        case Method.VPNG | Method.VPNG_BLOCK:
            metric = Predictive(Probed(num_probes=1), num_particles=1)
            structure = discover(problem, parameters, batch, metric)
            kind = _tridiagonal_if_chain(structure) if method is Method.VPNG else Kronecker
            curvature = kind(structure, diagonal_outputs=factored.independent_outputs, **options)
            return optimizers.vpng(
                problem,
                learning_rate,
                rule=on_top,
                metric=metric,
                curvature=curvature,
                damping=factored.damping,
                radius=factored.radius,
            )
        case _:
            raise expected("method", "one with a rule on top", method)


def _tridiagonal_if_chain(structure: Structure) -> type[AbstractKronecker]:
    return KroneckerTridiagonal if structure.is_chain else Kronecker


def eigenbasis_direction(
    problem: AbstractProblem,
    parameters: Parameters,
    batch: PyTree,
    calibration: PyTree,
    max_rank: int = 150,
) -> optax.GradientTransformation:
    """Adam in the eigenbasis of the predictive Fisher's factors, calibrated here and now.

    Args:
        problem: what is fitted.
        parameters: any of its parameters, to find the layers.
        batch: a batch of the run's size, which sets Adam's denominator.
        calibration: data for the basis of the layers that the data feed.
        max_rank: most directions kept of one factor.
    """
    structure = discover(problem, parameters, batch, Predictive(Probed(num_probes=1)))
    adam = optimizers.eigenbasis_adam(problem.batch_size(batch))
    return in_eigenbasis(
        problem,
        structure,
        adam,
        calibration=calibration,
        parameters=parameters,
        max_rank=max_rank,
    )


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
        times = [first_crossing(r.curves["seconds"], r.curves["test_elbo"], target) for r in mine]
        reached = [time for time in times if time is not None]
        mean = float(np.mean(reached)) if len(reached) == len(mine) else None
        entries[method] = {
            "seconds_to_gradient_final": mean,
            "share_of_gradient_time": None if mean is None else mean / budget,
            "lead_in_nats": float(np.mean([r.curves["test_elbo"][-1] for r in mine])) - target,
        }
    return {"gradient_final_test_elbo": target, "methods": entries}


def elbo_table(results: Results) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of the printed table."""
    heads = [
        "Method",
        "Test ELBO",
        "Its best",
        "Train ELBO",
        "Iterations",
        "ms / iteration",
        "Chosen",
    ]
    rows = [
        [
            Method(name).label,
            f"{entry['test_elbo']:.2f}",
            f"{entry['best_test_elbo']:.2f}",
            f"{entry['train_elbo']:.2f}",
            str(entry["iterations"]),
            f"{1000 * entry['seconds_per_iteration']:.1f}",
            f"{entry['optimizer']}, rate {entry['best_learning_rate']:g}",
        ]
        for name, entry in results.summary.items()
    ]
    return heads, rows


def draw_curves(results: Results, folder: Path, datum: str) -> list[Path]:
    """Train and test ELBO per `datum` against seconds and iterations."""
    labels = {f"{part}_elbo": f"{part} ELBO per {datum}" for part in ("train", "test")}
    name = results.experiment.replace("-", "_") + "_curves"
    return draw_panels(results, folder, name, labels)
