"""A posterior to trust: its uncertainty corrected, checked, and handed over to NUTS."""

from vpng.posterior.approximate import Budget, Draws, Evidence, Found, Guide
from vpng.posterior.density import LogDensity, log_density
from vpng.posterior.guide import guide_moments
from vpng.posterior.hand_over import HandedOver
from vpng.posterior.posterior import Posterior, posterior_of
from vpng.posterior.summary import Row, Summary
from vpng.posterior.verdict import Corrected, SeveralModes, UseIt, UseNUTS, Verdict

__all__ = [
    "Budget",
    "Corrected",
    "Draws",
    "Evidence",
    "Found",
    "Guide",
    "HandedOver",
    "LogDensity",
    "Posterior",
    "Row",
    "SeveralModes",
    "Summary",
    "UseIt",
    "UseNUTS",
    "Verdict",
    "guide_moments",
    "log_density",
    "posterior_of",
]
