"""Variational inference that follows the curvature of the model.

The variational predictive natural gradient (Tang and Ranganath, ICML 2019) preconditions the
gradient of the ELBO with the Fisher information of the model's own predictive distribution.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vpng import kronecker, optimizers, problems, training, transform
from vpng.curvature import (
    AbstractCurvature,
    ConjugateGradient,
    Dense,
    Diagonal,
    Dual,
    Identity,
    LeastSquares,
    Outcome,
    auto,
)
from vpng.damping import AbstractDamping, Constant, LevenbergMarquardt, Scheduled
from vpng.diagnostics import Diagnosis, diagnose
from vpng.errors import InputError
from vpng.fisher import (
    AbstractEstimator,
    AbstractMetric,
    BayesianNetwork,
    Divergence,
    Exact,
    FisherOperator,
    LogFactors,
    Predictive,
    Probed,
    Sampled,
    Variational,
)
from vpng.kronecker import Kronecker, KroneckerTridiagonal
from vpng.objective import ELBO, Estimate, Reparameterised, ScoreFunction
from vpng.problem import AbstractProblem, Parameters, Problem, Site, check_problem
from vpng.run.stopping import Converged
from vpng.training import Checkpoints, FitResult, Guard, Loop, StopReason, fit
from vpng.transform import (
    GaussNewton,
    Hessian,
    precondition,
    scale_by_hessian_free,
    scale_by_natural_gradient,
    scale_by_vpng,
)
from vpng.version import __version__

if TYPE_CHECKING:
    from vpng import distributed, models, numpyro, paper
    from vpng.paper.experiments.race import race

_ON_DEMAND = {"race": "vpng.paper.experiments.race"} | {
    name: f"vpng.{name}" for name in ("distributed", "models", "numpyro", "paper")
}
"""Names that are imported when they are first used, and where from."""


def __getattr__(name: str) -> Any:
    if name not in _ON_DEMAND:
        raise AttributeError(f"module 'vpng' has no attribute {name!r}")
    module = importlib.import_module(_ON_DEMAND[name])
    return getattr(module, name) if name == "race" else module


__all__ = [
    "ELBO",
    "AbstractCurvature",
    "AbstractDamping",
    "AbstractEstimator",
    "AbstractMetric",
    "AbstractProblem",
    "BayesianNetwork",
    "Checkpoints",
    "ConjugateGradient",
    "Constant",
    "Converged",
    "Dense",
    "Diagnosis",
    "Diagonal",
    "Divergence",
    "Dual",
    "Estimate",
    "Exact",
    "FisherOperator",
    "FitResult",
    "GaussNewton",
    "Guard",
    "Hessian",
    "Identity",
    "InputError",
    "Kronecker",
    "KroneckerTridiagonal",
    "LeastSquares",
    "LevenbergMarquardt",
    "LogFactors",
    "Loop",
    "Outcome",
    "Parameters",
    "Predictive",
    "Probed",
    "Problem",
    "Reparameterised",
    "Sampled",
    "Scheduled",
    "ScoreFunction",
    "Site",
    "StopReason",
    "Variational",
    "__version__",
    "auto",
    "check_problem",
    "diagnose",
    "distributed",
    "fit",
    "kronecker",
    "models",
    "numpyro",
    "optimizers",
    "paper",
    "precondition",
    "problems",
    "race",
    "scale_by_hessian_free",
    "scale_by_natural_gradient",
    "scale_by_vpng",
    "training",
    "transform",
]
