"""The models: those of the zoo that have a guide of full covariance, and those from textbooks."""

from zoo import CASES
from zoo.case import Case
from zoo.textbook import TEXTBOOK

GUIDE = "AutoMultivariateNormal"

MODELS: dict[str, Case] = {case.model: case for case in (*CASES, *TEXTBOOK) if case.guide == GUIDE}
"""By name."""
