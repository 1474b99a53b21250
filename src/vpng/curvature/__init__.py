"""Ways to represent a metric and to solve with it."""

from vpng.curvature.automatic import Automatic, auto
from vpng.curvature.base import AbstractCurvature, Outcome, Solution, SolveInfo
from vpng.curvature.conjugate_gradient import ConjugateGradient
from vpng.curvature.direct import Dense, Diagonal, Dual, Identity, LeastSquares

__all__ = [
    "AbstractCurvature",
    "Automatic",
    "ConjugateGradient",
    "Dense",
    "Diagonal",
    "Dual",
    "Identity",
    "LeastSquares",
    "Outcome",
    "Solution",
    "SolveInfo",
    "auto",
]
