"""The joint information of a latent's conditional distribution, in the latent and its parents.

A latent z ~ p(z | phi) moves with the parameters itself, and so may phi. On the unconstrained scale
u of z, with z' ~ p(. | phi) and the score s = d log p(u' + du | phi + dphi),

    E[s s^T] = E[-second derivative of log p(u' | phi) in (u, phi)],

by parts, since p(u) vanishes at both ends: a positive semidefinite matrix that couples the latent
with its parents. For a Normal it is |dz - dloc|^2 / scale^2 + 2 dscale^2 / scale^2.

In a location family moving z is moving the location the other way, and on the log scale of a scale
family moving z is moving the scale; there the motion of z is absorbed into phi and the closed form
of `whiten` does the rest. Elsewhere the score is sampled.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions.transforms import biject_to

from vpng.fisher.families import Member, Whitened, has_closed_form, whitened
from vpng.fisher.unwrap import core_of

_LOCATION = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic)
_SCALE = {dist.HalfNormal: "scale", dist.HalfCauchy: "scale"}
_RATE = {dist.Exponential: "rate", dist.Gamma: "rate"}


def joint_rows(distribution: dist.Distribution, value: Array) -> Whitened | None:
    """Rows of the joint information, shape `batch_shape + (...)`; None without a closed form."""
    core = core_of(distribution, value)
    absorb = None if core is None else _absorption(type(core.distribution))
    if core is None or absorb is None or not has_closed_form(core.distribution):
        return None
    moved = absorb(core.distribution, core.value)
    joint = whitened(_full_size(core.distribution, moved.batch_shape), moved)
    if core.mask is None:
        return joint
    trailing = (1,) * (joint.coordinates.ndim - len(moved.batch_shape))
    return joint.times(core.mask.reshape(core.mask.shape + trailing))


def sampled_scores(
    distribution: dist.Distribution, value: Array, samples: Array
) -> Float[Array, "..."]:
    """Log p(u' + du | phi) for samples z' along the first axis, du the motion of `value`."""
    transform = biject_to(distribution.support)
    motion = transform.inv(value)
    motion = motion - jax.lax.stop_gradient(motion)

    def one(sample: Array) -> Array:
        unconstrained = jax.lax.stop_gradient(transform.inv(sample)) + motion
        constrained = transform(unconstrained)
        log_prob = distribution.log_prob(constrained)
        log_det = transform.log_abs_det_jacobian(unconstrained, constrained)
        extra = jnp.ndim(log_det) - jnp.ndim(log_prob)
        return log_prob + log_det.sum(axis=tuple(range(-extra, 0)))

    return jax.vmap(one)(samples)


Absorb = Callable[[dist.Distribution, Array], dist.Distribution]


def _absorption(family: type) -> Absorb | None:
    if family in _LOCATION or family is dist.MultivariateNormal:
        return _into_location
    if family in _SCALE:
        return lambda d, value: _into_scale(d, value, _SCALE[family], -1.0)
    if family in _RATE:
        return lambda d, value: _into_scale(d, value, _RATE[family], 1.0)
    return None


def _into_location(distribution: Member, value: Array) -> dist.Distribution:
    motion = value - jax.lax.stop_gradient(value)
    batch_shape = jnp.shape(value)[: jnp.ndim(value) - distribution.event_dim]
    return _full_size(distribution, batch_shape, loc=distribution.loc - motion)


def _into_scale(distribution: Member, value: Array, name: str, sign: float) -> dist.Distribution:
    logarithm = jnp.log(value)
    factor = jnp.exp(sign * (logarithm - jax.lax.stop_gradient(logarithm)))
    scaled = getattr(distribution, name) * factor
    return _full_size(distribution, jnp.shape(value), **{name: scaled})


def _full_size(
    distribution: Member, batch_shape: tuple[int, ...], **changed: Array
) -> dist.Distribution:
    """The same distribution with parameters of the size of its batch, some of them changed."""
    family: Any = type(distribution)
    if family is dist.MultivariateNormal:
        size = distribution.event_shape
        location = {"loc": distribution.loc, **changed}["loc"]
        return dist.MultivariateNormal(
            jnp.broadcast_to(location, batch_shape + size),
            scale_tril=jnp.broadcast_to(distribution.scale_tril, batch_shape + size + size),
            validate_args=False,
        )
    own = {name: getattr(distribution, name) for name in family.arg_constraints}
    full = {
        name: jnp.broadcast_to(value, batch_shape) for name, value in {**own, **changed}.items()
    }
    return family(**full, validate_args=False)
