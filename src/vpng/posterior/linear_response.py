"""The covariance of a posterior by the response of an approximation's mean (Giordano et al. 2018).

Tilt the log density by t'z: the mean under the tilted posterior moves by its covariance times t.
The optimum of the ELBO moves too, by the implicit function theorem: with H the Hessian of the
negative ELBO in (m, log s), dm/dt is the location block of H^-1. It is the covariance of a normal
posterior whatever the approximation's own, since there the blocks (m, log s) of H vanish.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Float, Int

from vpng.posterior.batches import over
from vpng.posterior.frame import AbstractFrame
from vpng.posterior.mean_field import Density, MeanField, mean_over, negative_elbo


class Curvature(NamedTuple):
    """Blocks of the Hessian of the negative ELBO in (m, log s).

    Attributes:
        loc: in the locations.
        cross: in locations and logarithms of scales.
        log_scale: in the logarithms of scales.
    """

    loc: Float[Array, "P P"]
    cross: Float[Array, "P P"]
    log_scale: Float[Array, "P P"]


class Response(NamedTuple):
    """A covariance by linear response.

    Attributes:
        covariance: of the latents, in the coordinates of the frame.
        exact: whether the whole Hessian was positive definite; if not, its location block is used
            alone, and directions in which that is not are given the approximation's own width.
    """

    covariance: Float[np.ndarray, "P P"]
    exact: bool


def curvature(
    density: Density,
    frame: AbstractFrame,
    draws: Float[Array, "C M P"],
    count: Int[Array, ""],
    point: MeanField,
) -> Curvature:
    """The Hessian at a point, from that of the log density at each draw in turn.

    Args:
        density: log p(x, z).
        frame: the coordinates of the approximation.
        draws: chunks of standard normal draws.
        count: how many of the chunks are used.
        point: the approximation.
    """
    scale = jnp.exp(point.log_scale)
    log_p = lambda u: density(frame(u))

    def one(draw: Float[Array, " P"]) -> Curvature:
        spread = scale * draw
        slope, products = jax.linearize(jax.grad(log_p), point.loc + spread)
        hessian = over(density, products)(jnp.eye(spread.size, dtype=spread.dtype))
        return Curvature(
            -hessian,
            -hessian * spread,
            -spread[:, None] * hessian * spread - jnp.diag(slope * spread),
        )

    chunks, each, size = draws.shape
    alone = draws.reshape(chunks * each, 1, size)
    return mean_over(lambda draw: one(draw[0]), alone, count * each)


def response(found: Curvature, point: MeanField) -> Response:
    """The location block of H^-1, in double precision.

    It is taken in units of the approximation's own scales: those of the latents may be anything.
    """
    scale = np.exp(np.asarray(point.log_scale, np.float64))
    loc, cross, log_scale = (np.asarray(block, np.float64) for block in found)
    loc, cross = scale[:, None] * loc * scale, scale[:, None] * cross
    widths, basis = np.linalg.eigh(_symmetric(log_scale))
    exact = bool(widths.min() > 0)
    if exact:
        half = (cross @ basis) / np.sqrt(widths)
        precision = _symmetric(loc - half @ half.T)
        values, basis = np.linalg.eigh(precision)
        exact = bool(values.min() > _rounding(values, found.loc.dtype))
    if not exact:
        values, basis = np.linalg.eigh(_symmetric(loc))
        values = np.where(values > _rounding(values, found.loc.dtype), values, 1.0)
    root = scale[:, None] * basis / np.sqrt(values)
    return Response(root @ root.T, exact)


def response_along(
    density: Density,
    frame: AbstractFrame,
    draws: Float[Array, "C M P"],
    point: MeanField,
    directions: Float[Array, "K P"],
    *,
    rtol: float = 1e-5,
) -> Float[Array, "K P"]:
    """The covariance times chosen directions, by conjugate gradients: no P x P matrix is formed."""
    size = draws.shape[-1]
    scale = jnp.exp(point.log_scale)
    origin = jnp.zeros(2 * size, draws.dtype)

    def product(vector: Float[Array, " 2P"]) -> Float[Array, " 2P"]:
        def bent(chunk: Float[Array, "M P"]) -> Float[Array, " 2P"]:
            local = lambda move: negative_elbo(density, frame, chunk, point.moved(move))
            return jax.jvp(jax.grad(local), (origin,), (vector,))[1]

        return mean_over(bent, draws, jnp.asarray(len(draws)))

    def one(direction: Float[Array, " P"]) -> Float[Array, " P"]:
        # In the units of `MeanField.moved`, as is the Hessian.
        target = jnp.concatenate([scale * direction, jnp.zeros(size, draws.dtype)])
        return scale * cg(product, target, tol=rtol, maxiter=4 * size)[0][:size]

    return jax.lax.map(one, directions)


def delta_method(
    function: Callable[[Float[Array, " P"]], Float[Array, " K"]],
    at: Float[Array, " P"],
    times_covariance: Callable[[Float[Array, "K P"]], Float[Array, "K P"]],
) -> Float[Array, "K K"]:
    """The covariance of a smooth function of the latents, to first order."""
    slopes = jax.jacrev(function)(at)
    return slopes @ times_covariance(slopes).T


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return (matrix + matrix.T) / 2


def _rounding(values: np.ndarray, dtype: np.dtype) -> float:
    return float(np.abs(values).max() * len(values) * np.finfo(dtype).eps)
