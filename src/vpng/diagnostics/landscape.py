"""The ELBO in a plane through the current parameters."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


@dataclass(frozen=True)
class Landscape:
    """The ELBO as a function of a displacement, with the same random numbers everywhere.

    Attributes:
        elbo: of the parameters moved by a flat displacement.
    """

    elbo: Callable[[Float[Array, " P"]], Float[Array, ""]]

    def heights(self, axes: np.ndarray, across: np.ndarray, along: np.ndarray) -> np.ndarray:
        """The ELBO at across_j axes_0 + along_i axes_1, shape [along, across]."""
        basis = jnp.asarray(axes)
        xs, ys = np.meshgrid(across, along)
        points = jnp.asarray(np.stack([xs.ravel(), ys.ravel()], 1), basis.dtype)

        @jax.jit
        def at(points: Float[Array, "n 2"]) -> Float[Array, " n"]:
            return jax.lax.map(lambda point: self.elbo(point @ basis), points, batch_size=32)

        return np.asarray(at(points), np.float64).reshape(xs.shape)


def plane(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Orthonormal axes of the plane of two vectors, shape [2, P], the first along `first`.

    Vectors of one direction span no plane; any other direction then completes it.
    """
    axis = first / np.linalg.norm(first)
    rest = second - (second @ axis) * axis
    if np.linalg.norm(rest) < 1e-6 * np.linalg.norm(second) or not np.any(second):
        rest = np.zeros_like(axis)
        rest[np.argmin(np.abs(axis))] = 1.0
        rest = rest - (rest @ axis) * axis
    # A single parameter leaves nothing across: the plane is a line.
    return np.stack([axis, rest / max(np.linalg.norm(rest), np.finfo(rest.dtype).tiny)])
