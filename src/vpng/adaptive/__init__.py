"""Steps without a learning rate: the metric's own model of the loss, checked against the loss."""

from vpng.adaptive.dense import AveragedDense
from vpng.adaptive.eliminated import Eliminated
from vpng.adaptive.geometry import AbstractGeometry, Evaluation, Objective, Particles, Prepared
from vpng.adaptive.linearised import Linearised
from vpng.adaptive.location_scale import Cholesky, LocationScale, PerCoordinate
from vpng.adaptive.low_rank import LowRank
from vpng.adaptive.many_locations import ManyLocations
from vpng.adaptive.rule import Adaptive, AdaptiveInfo, AdaptiveState
from vpng.adaptive.stiffness import Stiffness

__all__ = [
    "AbstractGeometry",
    "Adaptive",
    "AdaptiveInfo",
    "AdaptiveState",
    "AveragedDense",
    "Cholesky",
    "Eliminated",
    "Evaluation",
    "Linearised",
    "LocationScale",
    "LowRank",
    "ManyLocations",
    "Objective",
    "Particles",
    "PerCoordinate",
    "Prepared",
    "Stiffness",
]
