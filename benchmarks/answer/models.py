"""The models: those of the zoo that have a guide of full covariance, and those from textbooks."""

import math

import jax
import numpyro

from zoo import CASES
from zoo.case import Case
from zoo.textbook import TEXTBOOK

GUIDE = "AutoMultivariateNormal"

MODELS: dict[str, Case] = {case.model: case for case in (*CASES, *TEXTBOOK) if case.guide == GUIDE}
"""By name."""


def num_latents(case: Case) -> int:
    """Numbers that are not known."""

    def sizes() -> dict[str, jax.Array]:
        trace = numpyro.handlers.trace(numpyro.handlers.seed(case.run, 0)).get_trace(*case.args)
        return {
            name: site["value"]
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }

    shapes = jax.eval_shape(sizes)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
