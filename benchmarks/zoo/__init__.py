"""Models that people know, each with its data and the guides that fit it."""

from zoo import hierarchies, latent_variables, networks, processes, regressions
from zoo.case import Case

CASES: tuple[Case, ...] = (
    *regressions.cases(),
    *hierarchies.cases(),
    *processes.cases(),
    *latent_variables.cases(),
    *networks.cases(),
)
"""Every pair of a model and a guide."""

__all__ = ["CASES", "Case"]
