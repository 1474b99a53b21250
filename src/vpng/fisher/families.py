"""Square roots of the Fisher information of each likelihood family.

For a distribution with parameters phi and Fisher information I(phi) = S S^T, `whiten(at, of)` is a
function of the parameters of `of` whose Jacobian at `of = at` is S^T. The rows of that Jacobian,
pulled back to any parameters eta that phi depends on, are therefore rows R of a factor of the
Fisher in eta: (dphi/deta)^T I(phi) (dphi/deta) = R^T R. Automatic differentiation does the pulling.

The result has shape `batch_shape + (...)`: what belongs to one batch element stays with it.
"""

import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import i0e, i1e, polygamma
from jaxtyping import Array, Float
from numpyro.distributions import transforms

from vpng.fisher.numerical import at_zero, by_quadrature
from vpng.fisher.quadrature import negative_binomial_dispersion_information
from vpng.fisher.unwrap import has_arrays, unwrapped
from vpng.numpyro_names import mask_of

Family = TypeVar("Family", bound=dist.Distribution)

Member = Any
"""A distribution of the family that a rule is for, whose parameters are its attributes."""

Whiten = Callable[[Member, Member], Float[Array, "..."]]


class Whitened(NamedTuple):
    """Rows in two factors, of which the first is held fixed.

    Attributes:
        weights: depend on where the Fisher information is evaluated alone.
        coordinates: functions of the parameters, often linear ones; of the shape of the rows.
    """

    weights: Float[Array, "..."]
    coordinates: Float[Array, "..."]

    @property
    def rows(self) -> Float[Array, "..."]:
        """The product of both."""
        return self.weights * self.coordinates

    def times(self, factor: Array | float) -> "Whitened":
        """The rows multiplied by what is held fixed."""
        return Whitened(self.weights * factor, self.coordinates)


class DiagonalRule(NamedTuple):
    """A rule that multiplies every coordinate by a root of its information.

    Attributes:
        weights: of a distribution.
        coordinates: of the same distribution.
    """

    weights: Callable[[Member], Array]
    coordinates: Callable[[Member], Array]

    def __call__(self, at: dist.Distribution, of: dist.Distribution) -> Array:
        return self.weights(at) * self.coordinates(of)


@singledispatch
def _family(at: dist.Distribution) -> Whiten | None:
    """The whitening rule of a family; None if there is no closed form for it."""
    return None


def _rule(distribution: dist.Distribution) -> Whiten | None:
    """The rule of a family; None for a user's subclass with a density of its own."""
    kind = type(distribution)
    for family in kind.__mro__:
        if family is not object and family in _family.registry:
            known = kind.__module__.startswith("numpyro.") or kind.log_prob is family.log_prob
            return _family(distribution) if known else None
    return _numerical(distribution) if kind.__module__.startswith("numpyro.") else None


def _numerical(distribution: dist.Distribution) -> Whiten | None:
    """By sums over values; of families with a zero apart, from that of the base."""
    if isinstance(distribution, dist.ZeroInflatedProbs | dist.HurdleProbs):
        base = _rule(distribution.base_dist)
        return None if base is None else at_zero(distribution, base)
    return by_quadrature(distribution)


def same_density(family: type[Family]) -> type[Family]:
    """Decorates a subclass whose `log_prob` is that of its family, written in another way."""
    _family.register(family)(_family.dispatch(family))
    return family


def has_closed_form(distribution: dist.Distribution) -> bool:
    """Whether the Fisher information of `distribution` is known, exactly or by quadrature."""
    return _rule(distribution) is not None


def is_by_quadrature(distribution: dist.Distribution) -> bool:
    """Whether the information of a family of its own, or of its base, is a sum over values."""
    inner = unwrapped(distribution)
    if isinstance(inner, dist.ZeroInflatedProbs | dist.HurdleProbs):
        return is_by_quadrature(inner.base_dist)
    own = [family for family in type(inner).__mro__ if family is not object]
    return not any(family in _family.registry for family in own)


def whiten(at: dist.Distribution, of: dist.Distribution) -> Float[Array, "..."]:
    """S(at)^T applied to the parameters of `of`: shape `batch_shape + (...)`.

    Args:
        at: where the Fisher information is evaluated; its gradient is stopped here.
        of: the same distribution, differentiable.

    Returns:
        An array whose Jacobian with respect to whatever `of` was made from is a Fisher factor.
    """
    return whitened(at, of).rows


def whitened(at: dist.Distribution, of: dist.Distribution) -> Whitened:
    """What `whiten` returns, with what is held fixed apart from the rest where that is possible."""
    rule = _rule(at)
    if rule is None:
        raise NotImplementedError(f"no exact Fisher information for {type(at).__name__}")
    here = jax.lax.stop_gradient(at)
    if isinstance(rule, DiagonalRule):
        return Whitened(rule.weights(here), rule.coordinates(of))
    rows = rule(here, of)
    return Whitened(jnp.ones((), rows.dtype), rows)


def _diagonal(**roots: Callable[[Member], Array]) -> DiagonalRule:
    """Scalar families with uncorrelated parameters: S^T is diagonal, given by name.

    Roots, not the information itself, which overflows for scales that float32 can hold.
    """
    return DiagonalRule(
        lambda at: _stack([root(at) for root in roots.values()], at.batch_shape),
        lambda of: _stack([getattr(of, name) for name in roots], of.batch_shape),
    )


def _pairwise(
    information: Callable[[Member], tuple[Array, Array | float, Array]],
    coordinates: Callable[[Member, Member], tuple[Array, Array]],
) -> Whiten:
    """Two correlated scalar coordinates: S is the Cholesky factor of [[a, c], [c, b]]."""

    def rule(at: dist.Distribution, of: dist.Distribution) -> Array:
        a, c, b = information(at)
        first, second = coordinates(at, of)
        root = jnp.sqrt(a)
        rest = jnp.sqrt(jnp.maximum(b - (c / root) ** 2, 0.0))
        return _stack([root * first + c / root * second, rest * second], at.batch_shape)

    return rule


def _stack(rows: Sequence[Array], batch_shape: tuple[int, ...]) -> Array:
    return jnp.stack([jnp.broadcast_to(row, batch_shape) for row in rows], axis=-1)


def _register(*families: type, rule: Whiten) -> None:
    for family in families:
        _family.register(family)(lambda _at, _rule=rule: _rule)


_tiny = lambda value: jnp.finfo(jnp.result_type(value)).tiny


def _bernoulli_variance(p: Array) -> Array:
    return jnp.maximum(p * (1.0 - p), _tiny(p))


def _logit_deviation(logits: Array) -> Array:
    """The standard deviation sqrt(p (1 - p)), without cancellation in either tail."""
    return jnp.exp(-jnp.abs(logits) / 2) / (1.0 + jnp.exp(-jnp.abs(logits)))


def _location_scale(location: float, scale: float) -> DiagonalRule:
    """Information `location` / scale^2 and `scale` / scale^2."""
    return _diagonal(
        loc=lambda d: math.sqrt(location) / d.scale, scale=lambda d: math.sqrt(scale) / d.scale
    )


_register(dist.Normal, rule=_location_scale(1.0, 2.0))
_register(dist.Laplace, rule=_location_scale(1.0, 1.0))
_register(dist.Cauchy, rule=_location_scale(0.5, 0.5))
_register(dist.Logistic, rule=_location_scale(1.0 / 3.0, (3.0 + math.pi**2) / 9.0))
_register(dist.HalfNormal, rule=_diagonal(scale=lambda d: math.sqrt(2.0) / d.scale))
_register(dist.HalfCauchy, rule=_diagonal(scale=lambda d: math.sqrt(0.5) / d.scale))
_register(dist.Exponential, rule=_diagonal(rate=lambda d: 1.0 / d.rate))
_register(
    dist.Poisson,
    rule=_diagonal(rate=lambda d: jax.lax.rsqrt(jnp.maximum(d.rate, _tiny(d.rate)))),
)
_register(dist.BernoulliLogits, rule=_diagonal(logits=lambda d: _logit_deviation(d.logits)))
_register(
    dist.BernoulliProbs,
    rule=_diagonal(probs=lambda d: jax.lax.rsqrt(_bernoulli_variance(d.probs))),
)
_register(
    dist.BinomialLogits,
    rule=_diagonal(logits=lambda d: jnp.sqrt(d.total_count) * _logit_deviation(d.logits)),
)
_register(
    dist.BinomialProbs,
    rule=_diagonal(
        probs=lambda d: jnp.sqrt(d.total_count) * jax.lax.rsqrt(_bernoulli_variance(d.probs))
    ),
)
_register(
    dist.GeometricLogits,
    rule=_diagonal(logits=lambda d: jnp.sqrt(jax.nn.sigmoid(-d.logits))),
)
_register(
    dist.GeometricProbs,
    rule=_diagonal(
        probs=lambda d: jax.lax.rsqrt(jnp.maximum(1.0 - d.probs, _tiny(d.probs))) / d.probs
    ),
)
_register(
    dist.Gamma,
    # The rate on its own scale: d rate / rate.
    rule=_pairwise(
        lambda d: (polygamma(1, d.concentration), -1.0, d.concentration),
        lambda at, of: (of.concentration, of.rate / at.rate),
    ),
)
_GAMMA = float(np.euler_gamma)
"""Euler's constant."""

_register(
    dist.Weibull,
    # The scale on its own scale: d scale / scale.
    rule=_pairwise(
        lambda d: (
            d.concentration**2,
            -(1.0 - _GAMMA) * jnp.ones_like(d.concentration),
            (math.pi**2 / 6.0 + (1.0 - _GAMMA) ** 2) / d.concentration**2,
        ),
        lambda at, of: (of.scale / at.scale, of.concentration),
    ),
)
_register(
    dist.Gumbel,
    rule=_pairwise(
        lambda d: (
            1.0 / d.scale**2,
            -(1.0 - _GAMMA) / d.scale**2,
            (math.pi**2 / 6.0 + (1.0 - _GAMMA) ** 2) / d.scale**2,
        ),
        lambda at, of: (of.loc, of.scale),
    ),
)


@_family.register(dist.VonMises)
def _von_mises(_at: dist.VonMises) -> Whiten:
    def roots(d: Member) -> tuple[Array, Array]:
        k = d.concentration
        ratio = i1e(k) / i0e(k)
        small = k < 1e-2
        apart = jnp.where(small, 1.0, k)
        # Near zero the difference is 1/2, and all rounding.
        spread = jnp.where(small, 0.5, 1.0 - ratio**2 - ratio / apart)
        return jnp.sqrt(k * ratio), jnp.sqrt(jnp.maximum(spread, 0.0))

    return DiagonalRule(
        lambda d: _stack(roots(d), d.batch_shape),
        lambda d: _stack([d.loc, d.concentration], d.batch_shape),
    )


@_family.register(dist.Dirichlet)
def _dirichlet(_at: dist.Dirichlet) -> Whiten:
    def rule(at: Member, of: Member) -> Array:
        a = at.concentration
        size = a.shape[-1]
        whole = polygamma(1, jnp.sum(a, axis=-1))[..., None, None]
        information = polygamma(1, a)[..., None] * jnp.eye(size) - whole
        lower = jnp.linalg.cholesky(information)
        return jnp.einsum("...ij,...i->...j", lower, of.concentration)

    return rule


@_family.register(dist.LowRankMultivariateNormal)
def _low_rank_normal(_at: dist.LowRankMultivariateNormal) -> Whiten:
    full = lambda d: dist.MultivariateNormal(
        d.loc, covariance_matrix=d.covariance_matrix, validate_args=False
    )
    return lambda at, of: whiten(full(at), full(of))


@_family.register(dist.GaussianRandomWalk)
def _random_walk(_at: dist.GaussianRandomWalk) -> DiagonalRule:
    # As many independent moves as steps.
    return DiagonalRule(
        lambda d: _stack([math.sqrt(2.0 * d.num_steps) / d.scale], d.batch_shape),
        lambda d: _stack([d.scale], d.batch_shape),
    )


_register(
    dist.Beta,
    rule=_pairwise(
        lambda d: (
            polygamma(1, d.concentration1) - polygamma(1, d.concentration1 + d.concentration0),
            -polygamma(1, d.concentration1 + d.concentration0),
            polygamma(1, d.concentration0) - polygamma(1, d.concentration1 + d.concentration0),
        ),
        lambda at, of: (of.concentration1, of.concentration0),
    ),
)


@_family.register(dist.StudentT)
def _student_t(_at: dist.StudentT) -> Whiten:
    def spread(d: Member) -> tuple[Array, Array, Array]:
        v = d.df
        shape = 0.25 * (polygamma(1, v / 2) - polygamma(1, (v + 1) / 2)) - (v + 5) / (
            2 * v * (v + 1) * (v + 3)
        )
        return 2 * v / (v + 3), -2.0 / ((v + 1) * (v + 3)), shape

    location = _diagonal(loc=lambda d: jnp.sqrt((d.df + 1) / (d.df + 3)) / d.scale)
    scale_and_df = _pairwise(spread, lambda at, of: (of.scale / at.scale, of.df))
    return lambda at, of: jnp.concatenate([location(at, of), scale_and_df(at, of)], axis=-1)


@_family.register(dist.GammaPoisson)
def _negative_binomial(_at: dist.GammaPoisson) -> Whiten:
    # Mean m = concentration / rate and dispersion r = concentration are orthogonal.
    def rule(at: Member, of: Member) -> Array:
        r = at.concentration
        m = r / at.rate
        mean_information = 1.0 / jnp.maximum(m + m**2 / r, _tiny(m))
        dispersion_information = negative_binomial_dispersion_information(m, r)
        return _stack(
            [
                jnp.sqrt(mean_information) * (of.concentration / of.rate),
                jnp.sqrt(dispersion_information) * of.concentration,
            ],
            at.batch_shape,
        )

    return rule


def _categorical_rows(probs: Array, logits: Array) -> Array:
    # S^T = diag(sqrt p) (I - 1 p^T), so S S^T = diag(p) - p p^T.
    return jnp.sqrt(probs) * (logits - jnp.sum(probs * logits, axis=-1, keepdims=True))


def _simplex_rows(at: Array, of: Array) -> Array:
    return of / jnp.sqrt(jnp.maximum(at, _tiny(at)))


_register(
    dist.CategoricalLogits,
    rule=lambda at, of: _categorical_rows(jax.nn.softmax(at.logits), of.logits),
)
_register(
    dist.CategoricalProbs,
    rule=lambda at, of: _simplex_rows(at.probs, of.probs),
)
_register(
    dist.MultinomialProbs,
    rule=lambda at, of: jnp.sqrt(at.total_count)[..., None] * _simplex_rows(at.probs, of.probs),
)
_register(
    dist.MultinomialLogits,
    rule=lambda at, of: (
        jnp.sqrt(at.total_count)[..., None]
        * _categorical_rows(jax.nn.softmax(at.logits), of.logits)
    ),
)


@_family.register(dist.MultivariateNormal)
def _multivariate_normal(_at: dist.MultivariateNormal) -> Whiten:
    # KL(theta + d) to second order is |L^-1 dm|^2 / 2 + |L^-1 dSigma L^-T|_F^2 / 4.
    def rule(at: Member, of: Member) -> Array:
        size = at.event_shape[0]
        tril = jnp.broadcast_to(at.scale_tril, (*at.batch_shape, size, size))
        location = jnp.broadcast_to(of.loc, (*at.batch_shape, size))
        # Where the covariance was given, its Cholesky factor need not be differentiated.
        given = "covariance_matrix" in vars(of)
        moving = jnp.broadcast_to(of.covariance_matrix if given else of.scale_tril, tril.shape)
        columns = jnp.concatenate([location[..., None], moving], axis=-1)
        solved = solve_triangular(tril, columns, lower=True)
        across = jnp.swapaxes(solved[..., 1:], -1, -2)
        if given:
            spread = solve_triangular(tril, across, lower=True) / math.sqrt(2.0)
        else:
            spread = (solved[..., 1:] + across) / math.sqrt(2.0)
        rows = jnp.concatenate([solved[..., :1], spread], axis=-1)
        return rows.reshape(*at.batch_shape, size * (size + 1))

    return rule


def _wrapping(
    inner: dist.Distribution,
    shape: Callable[[Array, Member], Array],
) -> Whiten | None:
    rule = _rule(inner)
    if rule is None:
        return None
    if isinstance(rule, DiagonalRule):
        return DiagonalRule(
            lambda at: shape(rule.weights(at.base_dist), at),
            lambda of: shape(rule.coordinates(of.base_dist), of),
        )
    return lambda at, of: shape(rule(at.base_dist, of.base_dist), at)


@_family.register(dist.Independent)
def _independent(at: dist.Independent) -> Whiten | None:
    return _wrapping(at.base_dist, lambda rows, _at: rows)


@_family.register(dist.ExpandedDistribution)
def _expanded(at: dist.ExpandedDistribution) -> Whiten | None:
    def expand(rows: Array, at: dist.ExpandedDistribution) -> Array:
        trailing = rows.shape[len(at.base_dist.batch_shape) :]
        return jnp.broadcast_to(rows, at.batch_shape + trailing)

    return _wrapping(at.base_dist, expand)


@_family.register(dist.MaskedDistribution)
def _masked(at: dist.MaskedDistribution) -> Whiten | None:
    def mask(rows: Array, at: dist.MaskedDistribution) -> Array:
        kept = mask_of(at)
        return rows * kept.reshape(kept.shape + (1,) * (rows.ndim - kept.ndim))

    return _wrapping(at.base_dist, mask)


@_family.register(dist.FoldedDistribution)
def _folded(_at: dist.FoldedDistribution) -> None:
    # The sign that folding loses holds information.
    return None


def _without_shape(distribution: Member) -> Member:
    """The family whose batch and event an expansion or `to_event` changed; masks stay."""
    while isinstance(distribution, dist.ExpandedDistribution | dist.Independent):
        distribution = distribution.base_dist
    return distribution


_LOCATED = (dist.Normal, dist.Laplace, dist.Cauchy, dist.Logistic, dist.StudentT)
_SCALED = {dist.HalfNormal: "scale", dist.HalfCauchy: "scale"}
_RATED = {dist.Exponential: "rate", dist.Gamma: "rate"}


@_family.register(dist.TransformedDistribution)
def _transformed(at: Member) -> Whiten | None:
    # A fixed bijection loses no information. One with arrays inside may depend on the parameters:
    # only an affine map is folded into the family that it moves or stretches.
    if not has_arrays(at.transforms):
        return _wrapping(at.base_dist, lambda rows, _at: rows)
    first, *later = at.transforms
    if not isinstance(first, transforms.AffineTransform) or any(map(has_arrays, later)):
        return None
    kind = type(_without_shape(at.base_dist))
    # A moving end of the support would be no regular parameter.
    stretched = kind in (*_SCALED, *_RATED) and not has_arrays(first.loc)
    if kind not in _LOCATED and not stretched:
        return None
    rule = _rule(_folded_in(at))
    if isinstance(rule, DiagonalRule):
        return DiagonalRule(
            lambda at: rule.weights(_folded_in(at)), lambda of: rule.coordinates(_folded_in(of))
        )
    return None if rule is None else lambda at, of: rule(_folded_in(at), _folded_in(of))


def _folded_in(distribution: Member) -> Member:
    """The family with its first transform, an affine one, in its own parameters."""
    affine, inner = distribution.transforms[0], _without_shape(distribution.base_dist)
    kind, stretch = type(inner), jnp.abs(affine.scale)
    parameters = {name: getattr(inner, name) for name in kind.arg_constraints}
    if kind in _LOCATED:
        parameters["loc"] = affine.loc + affine.scale * inner.loc
        parameters["scale"] = stretch * inner.scale
    elif kind in _SCALED:
        parameters[_SCALED[kind]] = stretch * parameters[_SCALED[kind]]
    else:
        parameters[_RATED[kind]] = parameters[_RATED[kind]] / stretch
    shape = distribution.base_dist.batch_shape + distribution.base_dist.event_shape
    shape = jnp.broadcast_shapes(shape, *(jnp.shape(value) for value in parameters.values()))
    full = {name: jnp.broadcast_to(value, shape) for name, value in parameters.items()}
    return kind(**full, validate_args=False)
