"""Fisher matrices as lazy operators, and the metrics that make them."""

from vpng.fisher.estimator import (
    AbstractEstimator,
    Exact,
    Probed,
    Sampled,
    Source,
    source_of_information,
)
from vpng.fisher.families import has_closed_form, whiten
from vpng.fisher.log_factors import LogFactors
from vpng.fisher.metric import (
    AbstractMetric,
    BayesianNetwork,
    Divergence,
    Predictive,
    Sum,
    Variational,
)
from vpng.fisher.operator import FisherOperator

__all__ = [
    "AbstractEstimator",
    "AbstractMetric",
    "BayesianNetwork",
    "Divergence",
    "Exact",
    "FisherOperator",
    "LogFactors",
    "Predictive",
    "Probed",
    "Sampled",
    "Source",
    "Sum",
    "Variational",
    "has_closed_form",
    "source_of_information",
    "whiten",
]
