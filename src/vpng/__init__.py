"""Variational inference that follows the curvature of the model.

The variational predictive natural gradient (Tang and Ranganath, ICML 2019) preconditions the
gradient of the ELBO with the Fisher information of the model's own predictive distribution.
"""

from vpng.threads import calm_lapack

calm_lapack()

from vpng import datasets, kronecker, optimizers, problems
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
from vpng.experiments.race import race
from vpng.fisher import (
    AbstractEstimator,
    AbstractMetric,
    Exact,
    FisherOperator,
    Predictive,
    Probed,
    Sampled,
    Variational,
)
from vpng.kronecker import Kronecker, KroneckerTridiagonal
from vpng.objective import ELBO, Estimate, Reparameterised, ScoreFunction
from vpng.problem import Parameters, Problem, Site, check_problem
from vpng.training import FitResult, Loop, StopReason, fit
from vpng.transform import (
    GaussNewton,
    Hessian,
    precondition,
    scale_by_hessian_free,
    scale_by_natural_gradient,
    scale_by_vpng,
)
from vpng.version import __version__

__all__ = [
    "ELBO",
    "AbstractCurvature",
    "AbstractDamping",
    "AbstractEstimator",
    "AbstractMetric",
    "ConjugateGradient",
    "Constant",
    "Dense",
    "Diagnosis",
    "Diagonal",
    "Dual",
    "Estimate",
    "Exact",
    "FisherOperator",
    "FitResult",
    "GaussNewton",
    "Hessian",
    "Identity",
    "InputError",
    "Kronecker",
    "KroneckerTridiagonal",
    "LeastSquares",
    "LevenbergMarquardt",
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
    "datasets",
    "diagnose",
    "fit",
    "kronecker",
    "optimizers",
    "precondition",
    "problems",
    "race",
    "scale_by_hessian_free",
    "scale_by_natural_gradient",
    "scale_by_vpng",
]
