"""The front door for NumPyro: `SVI` for any model and any guide."""

from vpng.numpyro.problem import Call, TracedProblem, traced_problem
from vpng.numpyro.svi import SVI, RunResult, default_metric
from vpng.stopping import Converged

__all__ = [
    "SVI",
    "Call",
    "Converged",
    "RunResult",
    "TracedProblem",
    "default_metric",
    "traced_problem",
]
