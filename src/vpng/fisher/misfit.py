"""How much further from a distribution its value lies than the distribution expects.

The information about a scale is the curvature at data that fit: 2 per observation for the log of a
Normal's scale. At the data themselves it is 2 M with M = (x - loc)^2 / scale^2. Neither leads to
the scale that fits, log(M) / 2 away: a step by the information overshoots, (M - 1) / 2, and one by
the curvature stays behind, (1 - 1 / M) / 2. The logarithmic mean of both, 2 (M - 1) / log M, leads
there in one step, and is the information where the data fit.
"""

from functools import singledispatch

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from vpng.fisher.families import Member, Whitened
from vpng.fisher.unwrap import core_of

_LEAST = 1e-4
"""A misfit below this counts as this: no information vanishes."""


def scaled_by_misfit(whitened: Whitened, distribution: dist.Distribution, value: Array) -> Whitened:
    """The rows of a scale multiplied such that their square is the logarithmic mean above.

    With the mean misfit over the site: one misfit observation is no reason.

    Args:
        whitened: rows of `whiten` or `joint_rows`, shape `batch_shape + (...)`.
        distribution: the site's.
        value: the site's.
    """
    core = core_of(distribution, value)
    ratios = None if core is None else misfit(core.distribution, core.value)
    if core is None or ratios is None:
        return whitened
    factor = jnp.sqrt(_logarithmic_mean(_mean(jax.lax.stop_gradient(ratios), core.mask)))
    family = core.distribution
    if isinstance(family, dist.Gamma):
        # The rows of the rate are those of the concentration too, whose information is certain.
        factor = jnp.maximum(factor, 1.0)
    if isinstance(family, dist.MultivariateNormal):
        size = family.event_shape[0]
        of_columns = jnp.where(jnp.arange(size + 1) == 0, 1.0, factor)
        return whitened.times(jnp.tile(of_columns, size))
    if isinstance(family, dist.Normal | dist.Laplace):
        return whitened.times(jnp.stack([jnp.ones_like(factor), factor]))
    return whitened.times(factor)


def _mean(ratios: Float[Array, "..."], mask: Bool[Array, "..."] | None) -> Float[Array, ""]:
    """Over what is not masked, whatever stands there; 1 if everything is."""
    if mask is None:
        return jnp.mean(ratios)
    kept, ratios = jnp.broadcast_arrays(mask, ratios)
    count = jnp.sum(kept)
    return jnp.where(count > 0, jnp.sum(jnp.where(kept, ratios, 0.0)) / jnp.maximum(count, 1), 1.0)


def _logarithmic_mean(misfit: Float[Array, ""]) -> Float[Array, ""]:
    """(M - 1) / log M, between 1 and M."""
    misfit = jnp.maximum(misfit, _LEAST)
    # Near 1 the quotient is all rounding, and the arithmetic mean the same.
    near = jnp.abs(misfit - 1.0) < 1e-2
    apart = jnp.where(near, 2.0, misfit)
    return jnp.where(near, 0.5 * (1.0 + misfit), (apart - 1.0) / jnp.log(apart))


@singledispatch
def misfit(distribution: dist.Distribution, value: Array) -> Float[Array, "..."] | None:
    """Observed over expected curvature of the scale, 1 on average at a good fit; None without."""
    return None


@misfit.register(dist.Normal)
def _normal(distribution: Member, value: Array) -> Array:
    return ((value - distribution.loc) / distribution.scale) ** 2


@misfit.register(dist.Laplace)
def _laplace(distribution: Member, value: Array) -> Array:
    return jnp.abs(value - distribution.loc) / distribution.scale


@misfit.register(dist.HalfNormal)
def _half_normal(distribution: Member, value: Array) -> Array:
    return (value / distribution.scale) ** 2


@misfit.register(dist.Exponential)
def _exponential(distribution: Member, value: Array) -> Array:
    return value * distribution.rate


@misfit.register(dist.Gamma)
def _gamma(distribution: Member, value: Array) -> Array:
    return value * distribution.rate / distribution.concentration


@misfit.register(dist.MultivariateNormal)
def _multivariate_normal(distribution: Member, value: Array) -> Array:
    residual = (value - distribution.loc)[..., None]
    whitened = solve_triangular(distribution.scale_tril, residual, lower=True)
    return jnp.mean(whitened[..., 0] ** 2, axis=-1)
