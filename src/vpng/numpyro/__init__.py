"""The front door for NumPyro: `SVI` for any model and any guide."""

from vpng.numpyro.inference import infer
from vpng.numpyro.loader import BatchesFrom, Epochs
from vpng.numpyro.problem import Call, TracedProblem, traced_problem
from vpng.numpyro.result import RunResult
from vpng.numpyro.svi import SVI, default_metric
from vpng.run.stopping import Converged

__all__ = [
    "SVI",
    "BatchesFrom",
    "Call",
    "Converged",
    "Epochs",
    "RunResult",
    "TracedProblem",
    "default_metric",
    "infer",
    "traced_problem",
]
