"""Variational inference that follows the curvature of the model."""

from vpng import optimizers, problems
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
from vpng.errors import InputError
from vpng.fisher import (
    AbstractMetric,
    Exact,
    FisherOperator,
    Predictive,
    Probed,
    Sampled,
    Variational,
)
from vpng.objective import ELBO, Estimate, Reparameterised, ScoreFunction
from vpng.problem import Parameters, Problem, Site
from vpng.transform import (
    GaussNewton,
    Hessian,
    precondition,
    scale_by_hessian_free,
    scale_by_natural_gradient,
    scale_by_vpng,
)
