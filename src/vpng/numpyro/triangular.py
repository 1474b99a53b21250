"""NumPyro's triangular constraint by gathers, where NumPyro scatters.

Same values, same derivatives. On a CPU a scatter is a loop, and a step of the automatic rule goes
back and forth between the vector and the matrix a dozen times.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpyro.distributions.transforms import ScaledUnitLowerCholeskyTransform, Transform


class GatheredLowerCholesky(ScaledUnitLowerCholeskyTransform):
    """`ScaledUnitLowerCholeskyTransform`, which is that of `AutoMultivariateNormal`'s scale."""

    def __call__(self, x: Float[Array, "... m"]) -> Float[Array, "... n n"]:
        size = round(((1 + 8 * x.shape[-1]) ** 0.5 - 1) / 2)
        one_and_zero = jnp.broadcast_to(jnp.asarray([1.0, 0.0], x.dtype), (*x.shape[:-1], 2))
        entries = jnp.concatenate([x[..., :-size], one_and_zero], axis=-1)
        scale = jax.nn.softplus(x[..., -size:])
        return jnp.take(entries, _places(size), axis=-1, mode="clip") * scale[..., None]

    def _inverse(self, y: Float[Array, "... n n"]) -> Float[Array, "... m"]:
        size = y.shape[-1]
        rows, columns = np.tril_indices(size, -1)
        flat = y.reshape(*y.shape[:-2], size * size)
        scale = jnp.take(flat, np.arange(size) * (size + 1), axis=-1, mode="clip")
        below = jnp.take(flat, rows * size + columns, axis=-1, mode="clip")
        below = below / jnp.take(scale, rows, axis=-1, mode="clip")
        return jnp.concatenate([below, scale + jnp.log(-jnp.expm1(-scale))], axis=-1)


def gathered(transform: Transform) -> Transform:
    """The transform itself, or one that computes the same by gathers."""
    if type(transform) is ScaledUnitLowerCholeskyTransform:
        return GatheredLowerCholesky()
    return transform


@lru_cache
def _places(size: int) -> Int[np.ndarray, "n n"]:
    """Where each entry of the unit triangle is among those below its diagonal, one, and zero."""
    count = size * (size - 1) // 2
    places = np.full((size, size), count + 1)
    places[np.tril_indices(size, -1)] = np.arange(count)
    np.fill_diagonal(places, count)
    return places
