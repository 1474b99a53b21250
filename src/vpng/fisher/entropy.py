"""The curvature of the negative entropy of an approximation.

For z = loc + scale eps, -H = -sum log(scale) + constant has the second derivative
dscale^2 / scale^2, and nothing in the location: half of the classic Fisher F_q of the scale and
none of that of the location, which would hide the correlations that the model sees.

A latent that cannot be reparameterised, such as a discrete one, does not move with its parameters,
so that no model sees them: there the whole of F_q stands in.
"""

import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float

from vpng.fisher.families import Member, has_closed_form, whiten
from vpng.fisher.unwrap import core_of


def entropy_rows(distribution: dist.Distribution, value: Array) -> Float[Array, "..."] | None:
    """A function of the distribution whose Jacobian holds the rows; None if its entropy is fixed.

    Exact for Normal and MultivariateNormal, -H = -sum log diag(L); others are taken to have the
    entropy of Normals with their variances.
    """
    core = core_of(distribution, value)
    if core is None:
        return None
    rows = _family_rows(core.distribution)
    if rows is None:
        return None
    inner = core.distribution
    drawn = jnp.shape(core.value)[: jnp.ndim(core.value) - inner.event_dim]
    batch_shape = jnp.broadcast_shapes(drawn, inner.batch_shape)
    trailing = rows.shape[len(inner.batch_shape) :]
    rows = jnp.broadcast_to(rows, batch_shape + trailing)
    if core.mask is None:
        return rows
    return rows * core.mask.reshape(core.mask.shape + (1,) * len(trailing))


def _family_rows(distribution: Member) -> Float[Array, "..."] | None:
    """The rows of a plain family, its batch first: what its elements share counts in each."""
    family = type(distribution)
    if issubclass(family, dist.Delta):
        return None
    if not distribution.has_rsample:
        known = has_closed_form(distribution)
        return whiten(distribution, distribution) if known else None
    if issubclass(family, dist.Normal):
        rows = jnp.log(distribution.scale)
    elif issubclass(family, dist.MultivariateNormal):
        rows = jnp.log(jnp.diagonal(distribution.scale_tril, axis1=-2, axis2=-1))
    else:
        try:
            rows = 0.5 * jnp.log(distribution.variance)
        except NotImplementedError:
            return None
    return jnp.broadcast_to(rows, distribution.shape())
