"""Coordinates in which a normal approximation is standard."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular

LOG_TWO_PI = float(np.log(2 * np.pi))


class AbstractFrame(eqx.Module):
    """Coordinates u of the latents, z = centre + root u: N(centre, root root') if u is standard.

    Attributes:
        centre: the origin of u.
        root: a matrix, or the diagonal of one.
    """

    centre: eqx.AbstractVar[Float[Array, " P"]]
    root: eqx.AbstractVar[Float[Array, "P *P"]]

    @abstractmethod
    def __call__(self, u: Float[Array, "... P"]) -> Float[Array, "... P"]:
        """The latents at coordinates u."""

    @abstractmethod
    def coordinates(self, z: Float[np.ndarray, "S P"]) -> Float[np.ndarray, "S P"]:
        """The coordinates of latents, in double precision."""

    @abstractmethod
    def log_determinant(self) -> float:
        """Of the root."""

    @abstractmethod
    def scales(self) -> Float[np.ndarray, " P"]:
        """The standard deviation of every latent."""

    def log_prob(self, z: Float[np.ndarray, "S P"]) -> Float[np.ndarray, " S"]:
        """The log density of the normal distribution that is standard in u."""
        u = self.coordinates(z)
        return -0.5 * np.sum(u**2 + LOG_TWO_PI, axis=-1) - self.log_determinant()


class Full(AbstractFrame):
    """A frame with a lower triangular root.

    Attributes:
        centre: the origin of u.
        root: a Cholesky factor of the covariance.
    """

    centre: Float[Array, " P"]
    root: Float[Array, "P P"]

    def __call__(self, u: Float[Array, "... P"]) -> Float[Array, "... P"]:
        return self.centre + u @ self.root.T

    def coordinates(self, z: Float[np.ndarray, "S P"]) -> Float[np.ndarray, "S P"]:
        off = np.asarray(z, np.float64) - np.asarray(self.centre, np.float64)
        return solve_triangular(np.asarray(self.root, np.float64), off.T, lower=True).T

    def log_determinant(self) -> float:
        return float(np.sum(np.log(np.diagonal(np.asarray(self.root, np.float64)))))

    def scales(self) -> Float[np.ndarray, " P"]:
        return np.linalg.norm(np.asarray(self.root, np.float64), axis=1)

    def covariance(self) -> Float[np.ndarray, "P P"]:
        """Of the latents."""
        root = np.asarray(self.root, np.float64)
        return root @ root.T


class Diagonal(AbstractFrame):
    """A frame whose root is a diagonal matrix, for many latents.

    Attributes:
        centre: the origin of u.
        root: the diagonal.
    """

    centre: Float[Array, " P"]
    root: Float[Array, " P"]

    def __call__(self, u: Float[Array, "... P"]) -> Float[Array, "... P"]:
        return self.centre + u * self.root

    def coordinates(self, z: Float[np.ndarray, "S P"]) -> Float[np.ndarray, "S P"]:
        return (np.asarray(z, np.float64) - np.asarray(self.centre)) / np.asarray(self.root)

    def log_determinant(self) -> float:
        return float(np.sum(np.log(np.asarray(self.root, np.float64))))

    def scales(self) -> Float[np.ndarray, " P"]:
        return np.asarray(self.root, np.float64)


def unit_frame(size: int, *, full: bool) -> AbstractFrame:
    """The frame whose coordinates are the latents themselves."""
    zeros = jnp.zeros(size)
    return Full(zeros, jnp.eye(size)) if full else Diagonal(zeros, jnp.ones(size))
