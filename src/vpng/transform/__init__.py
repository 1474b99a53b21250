"""optax transformations: the direction, apart from the step size."""

from vpng.transform.hessian_free import (
    AbstractProduct,
    GaussNewton,
    Hessian,
    HessianFreeState,
    scale_by_hessian_free,
)
from vpng.transform.precondition import (
    PreconditionState,
    precondition,
    scale_by_natural_gradient,
    scale_by_vpng,
)

__all__ = [
    "AbstractProduct",
    "GaussNewton",
    "Hessian",
    "HessianFreeState",
    "PreconditionState",
    "precondition",
    "scale_by_hessian_free",
    "scale_by_natural_gradient",
    "scale_by_vpng",
]
