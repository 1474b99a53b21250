"""optax transformations: the direction, apart from the step size."""

from vpng.transform.hessian_free import (
    AbstractProduct,
    GaussNewton,
    Hessian,
    HessianFreeState,
    scale_by_hessian_free,
)
from vpng.transform.iterate_averaging import IterateAverageState, averaged, iterate_average
from vpng.transform.preconditioning import (
    PreconditionState,
    precondition,
    scale_by_natural_gradient,
    scale_by_vpng,
)
from vpng.transform.trust_region import TrustRegionState, limit_step

__all__ = [
    "AbstractProduct",
    "GaussNewton",
    "Hessian",
    "HessianFreeState",
    "IterateAverageState",
    "PreconditionState",
    "TrustRegionState",
    "averaged",
    "iterate_average",
    "limit_step",
    "precondition",
    "scale_by_hessian_free",
    "scale_by_natural_gradient",
    "scale_by_vpng",
]
