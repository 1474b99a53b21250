"""The curvature of the negative entropy of an approximation.

For z = loc + scale eps, -H = -sum log(scale) + constant has the second derivative
dscale^2 / scale^2, and nothing in the location: half of the classic Fisher F_q of the scale and
none of that of the location, which would hide the correlations that the model sees.

A discrete latent does not move with its parameters, so that no model sees them: there the whole of
F_q stands in.
"""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from vpng.fisher.unwrap import core_of
from vpng.fisher.whiten import has_closed_form, whiten


def entropy_rows(distribution: dist.Distribution, value: Array) -> Float[Array, "..."] | None:
    """A function of the distribution whose Jacobian holds the rows; None if its entropy is fixed.

    Exact for Normal and MultivariateNormal, -H = -sum log diag(L); others are taken to have the
    entropy of Normals with their variances.
    """
    core = core_of(distribution, value)
    if core is None:
        return None
    distribution = core.distribution
    if isinstance(distribution, dist.Delta):
        return None
    if distribution.is_discrete:
        known = has_closed_form(distribution)
        return whiten(distribution, distribution) if known else None
    if isinstance(distribution, dist.Normal):
        return jnp.log(distribution.scale)
    if isinstance(distribution, dist.MultivariateNormal):
        return jnp.log(jnp.diagonal(distribution.scale_tril, axis1=-2, axis2=-1))
    try:
        variance = distribution.variance
    except NotImplementedError:
        return None
    return 0.5 * jnp.log(variance)
