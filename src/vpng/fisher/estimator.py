"""How the likelihood's Fisher information is estimated: exactly, from samples, or from probes."""

import warnings
from abc import abstractmethod
from enum import Enum
from functools import cache
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.checks import positive_integer
from vpng.fisher.conditional import joint_rows, sampled_scores
from vpng.fisher.families import Whitened, has_closed_form, is_by_quadrature, whitened
from vpng.fisher.misfit import scaled_by_misfit
from vpng.fisher.numerical import by_second_derivatives
from vpng.fisher.unwrap import core_of, unwrapped
from vpng.problem import Site
from vpng.random import with_loop

CENSORED = (
    dist.LeftCensoredDistribution,
    dist.RightCensoredDistribution,
    dist.IntervalCensoredDistribution,
)
"""Families whose values are bounds in part."""


class AbstractEstimator(eqx.Module):
    """Turns the sites of a problem into rows, functions of the parameters: F = R^T R, R = Jacobian.

    The randomness is drawn first (`draw`) and held fixed, so that the rows are a plain function.
    Draws carry the batch dimensions of their site first, so that they can be split by datum.
    """

    pool_particles: eqx.AbstractVar[bool]
    random_signs: eqx.AbstractClassVar[bool]

    @abstractmethod
    def draw(self, rng_key: PRNGKeyArray, site: Site) -> PyTree:
        """The random numbers that `rows` needs for one site, free of gradients."""

    @abstractmethod
    def rows(self, site: Site, draws: PyTree) -> Float[Array, "..."]:
        """Rows of one site, shape `batch_shape + (...)`, weighted by the root of its scale."""

    def in_factors(self, site: Site, draws: PyTree) -> Whitened:
        """The same rows, what is held fixed apart from the rest where that is known."""
        rows = self.rows(site, draws)
        return Whitened(jnp.ones((), rows.dtype), rows)


class Sampled(AbstractEstimator):
    """The paper's Monte Carlo, eq. (r-fisher-info-approx): scores at x' ~ p(x' | z; theta).

    Works for every distribution that can be sampled and has a log-density; one that cannot be
    sampled has rows of zero.

    Attributes:
        num_samples: predictive samples x' for each draw of the latents.
        pool_particles: sum the scores of all particles into one row before the outer product.
            Scores of independent x' have mean zero given z, so products of different particles
            vanish in expectation: still unbiased, with fewer rows.
    """

    random_signs: ClassVar[bool] = True

    num_samples: int = eqx.field(default=10, static=True)
    pool_particles: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        positive_integer("num_samples", self.num_samples)

    def draw(self, rng_key: PRNGKeyArray, site: Site) -> PyTree:
        samples = _samples(rng_key, site.distribution, self.num_samples)
        if samples is None:
            return None
        return jax.lax.stop_gradient(jnp.moveaxis(samples, 0, len(site.distribution.batch_shape)))

    def rows(self, site: Site, draws: PyTree) -> Float[Array, "..."]:
        if draws is None:
            return jnp.zeros(site.distribution.batch_shape)
        batch_dims = len(site.distribution.batch_shape)
        samples = jnp.moveaxis(draws, batch_dims, 0)
        if site.moving:
            scores = sampled_scores(site.distribution, site.value, samples)
        else:
            scores = jax.vmap(site.distribution.log_prob)(samples)
        scores = jnp.moveaxis(scores, 0, batch_dims)
        return weighted(scores, site) / jnp.sqrt(self.num_samples)


class Exact(AbstractEstimator):
    """The closed form in the likelihood's parameters; other families fall back to `Sampled`.

    Attributes:
        fallback: used for sites whose family has no closed form.
        with_misfit: let the information about a scale go with the misfit of the data, see
            `vpng.fisher.misfit`; no longer the Fisher information where the fit is bad, and equal
            to it where it is good.
    """

    random_signs: ClassVar[bool] = False

    fallback: Sampled = Sampled()
    # Exact rows have no random signs: summed over particles they would not be rows of F.
    pool_particles: bool = eqx.field(default=False, static=True, init=False)
    with_misfit: bool = eqx.field(default=False, static=True)

    def draw(self, rng_key: PRNGKeyArray, site: Site) -> PyTree:
        if _closed_form(site) is not None:
            return ()
        return self.fallback.draw(rng_key, site)

    def rows(self, site: Site, draws: PyTree) -> Float[Array, "..."]:
        return self.in_factors(site, draws).rows

    def in_factors(self, site: Site, draws: PyTree) -> Whitened:
        whitened = _closed_form(site)
        if whitened is None:
            return self.fallback.in_factors(site, draws)
        if self.with_misfit:
            whitened = scaled_by_misfit(whitened, site.distribution, site.value)
        return whitened.times(_weight(whitened.coordinates, site))


class Probed(AbstractEstimator):
    """Random signs through the square root of the likelihood's Fisher.

    A probe v of independent signs has E[v v^T] = I, so S v has the second moment S S^T of a score,
    with less variance than a sampled x' and no sampling. Families with no closed form are sampled.

    Attributes:
        num_probes: sign vectors for each draw of the latents.
        pool_particles: as for `Sampled`.
    """

    random_signs: ClassVar[bool] = True

    num_probes: int = eqx.field(default=1, static=True)
    pool_particles: bool = eqx.field(default=False, static=True)

    def __check_init__(self) -> None:
        positive_integer("num_probes", self.num_probes)

    @property
    def _fallback(self) -> Sampled:
        return Sampled(num_samples=self.num_probes, pool_particles=self.pool_particles)

    def draw(self, rng_key: PRNGKeyArray, site: Site) -> PyTree:
        closed = jax.eval_shape(lambda: _closed_form(site))
        if closed is None:
            return self._fallback.draw(rng_key, site)
        whitened = closed.coordinates
        batch_dims = len(site.distribution.batch_shape)
        shape = (*whitened.shape[:batch_dims], self.num_probes, *whitened.shape[batch_dims:])
        return jax.random.rademacher(rng_key, shape, dtype=whitened.dtype)

    def rows(self, site: Site, draws: PyTree) -> Float[Array, "..."]:
        closed = _closed_form(site)
        if closed is None:
            return self._fallback.rows(site, draws)
        batch_dims = len(site.distribution.batch_shape)
        whitened = jnp.expand_dims(closed.rows, batch_dims)
        summed = jnp.sum(whitened * draws, axis=tuple(range(batch_dims + 1, whitened.ndim)))
        return weighted(summed, site) / jnp.sqrt(self.num_probes)


def _closed_form(site: Site) -> Whitened | None:
    if site.moving:
        return joint_rows(site.distribution, site.value)
    if isinstance(unwrapped(site.distribution), CENSORED):
        return _at_the_data(site)
    if not has_closed_form(site.distribution):
        return None
    return whitened(site.distribution, site.distribution)


def _at_the_data(site: Site) -> Whitened | None:
    """Of data some of which are bounds: how they would fall again is not known."""
    core = core_of(site.distribution, site.value)
    if core is None:
        return None
    rows = by_second_derivatives(core.distribution, core.value)
    if core.mask is not None:
        rows = rows * core.mask[..., None]
    return Whitened(jnp.ones((), rows.dtype), rows)


def _samples(rng_key: PRNGKeyArray, distribution: dist.Distribution, count: int) -> Array | None:
    """Draws along the first axis; None if the family cannot be sampled, which is said once."""
    # With a loop only where it must be: the draws are the same.
    for key in (rng_key, with_loop(rng_key)):
        try:
            return jnp.asarray(distribution.sample(key, (count,)))
        except NotImplementedError:
            continue
    _mention_without_samples(type(unwrapped(distribution)))
    return None


@cache
def _mention_without_samples(family: type) -> None:
    warnings.warn(
        f"{family.__name__} sites cannot be sampled: they count in the loss and are absent from "
        "the curvature.",
        stacklevel=2,
    )


def weighted(rows: Array, site: Site) -> Array:
    """Rows of one site, its batch first, times the root of its scale."""
    return rows * _weight(rows, site)


def _weight(rows: Array, site: Site) -> Array:
    """The root of the site's scale, in a shape that rows can be multiplied by."""
    weight = jnp.sqrt(jnp.asarray(site.scale, dtype=rows.dtype))
    if weight.ndim == 0:
        return weight
    weight = jnp.broadcast_to(weight, site.distribution.batch_shape)
    return weight.reshape(weight.shape + (1,) * (rows.ndim - weight.ndim))


class Source(Enum):
    """Where the information of an observed site comes from."""

    EXACT = "exact"
    QUADRATURE = "quadrature"
    HESSIAN = "Hessian"
    SAMPLED = "sampled"
    NONE = "none"


def source_of_information(distribution: dist.Distribution) -> Source:
    """Where `Exact` has the information of a family from."""
    if isinstance(unwrapped(distribution), CENSORED):
        return Source.HESSIAN
    if has_closed_form(distribution):
        return Source.QUADRATURE if is_by_quadrature(distribution) else Source.EXACT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = _samples(jax.random.key(0), distribution, 1) is not None
    return Source.SAMPLED if known else Source.NONE
