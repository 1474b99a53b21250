"""What inference needs to know about a model and its approximation."""

from vpng.problem.abstract import AbstractProblem, Parameters, Site, distributions_of
from vpng.problem.base import (
    Problem,
    check_problem,
    depends,
    drawn_from,
    leaves_in_use,
    parameters_of,
)

__all__ = [
    "AbstractProblem",
    "Parameters",
    "Problem",
    "Site",
    "check_problem",
    "depends",
    "distributions_of",
    "drawn_from",
    "leaves_in_use",
    "parameters_of",
]
