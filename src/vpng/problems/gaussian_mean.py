"""Section 3 of the paper: the mean of a Gaussian with a pathological, known covariance."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from vpng.checks import finite_scalar, matrix, positive_integer
from vpng.errors import expected
from vpng.problem import Parameters, Problem


class GaussianMean(Problem):
    """p(x, mu) = N(mu | 0, I) prod_i N(x_i | mu, Sigma), q(mu; lambda) = N(lambda, sigma^2 I).

    The variational parameter is the mean lambda itself; sigma is fixed.

    Attributes:
        covariance_root: the lower Cholesky factor of Sigma.
        scale: sigma.
    """

    num_data: int = eqx.field(static=True)
    covariance_root: Float[Array, "d d"]
    scale: float = 1.0
    local: bool = eqx.field(default=False, static=True)

    @classmethod
    def create(
        cls, covariance: Float[Array, "d d"], num_data: int, *, scale: float = 1.0
    ) -> "GaussianMean":
        """The problem for n data with covariance Sigma.

        Raises:
            InputError: if Sigma is not symmetric positive definite, or n or sigma is not positive.
        """
        positive_integer("num_data", num_data)
        finite_scalar("scale", scale, minimum=0.0, strict=True)
        covariance = matrix("covariance", covariance)
        if covariance.shape[0] != covariance.shape[1]:
            raise expected("covariance", "a square matrix", f"shape {covariance.shape}")
        root = jnp.linalg.cholesky(covariance)
        if not bool(jnp.allclose(covariance, covariance.T) & jnp.isfinite(root).all()):
            raise expected("covariance", "a symmetric positive definite matrix", covariance)
        return cls(num_data=num_data, covariance_root=root, scale=scale)

    def init(self) -> Parameters:
        """Lambda = 0."""
        return Parameters(jnp.zeros(self.covariance_root.shape[0], self.covariance_root.dtype))

    def approximation(self, variational: Array, batch: Array) -> dist.Distribution:
        return dist.Normal(variational, self.scale).to_event(1)

    def prior(self, model: tuple[()], batch: Array) -> dist.Distribution:
        size = self.covariance_root.shape[0]
        return dist.Normal(jnp.zeros(size), 1.0).to_event(1)

    def likelihood(self, model: tuple[()], latent: Array, batch: Array) -> dist.Distribution:
        mean = jnp.broadcast_to(latent, batch.shape)
        return dist.MultivariateNormal(mean, scale_tril=self.covariance_root)

    def observed(self, batch: Array) -> Array:
        return batch

    def noise(self, rng_key: PRNGKeyArray, batch: Array) -> Array:
        size = self.covariance_root.shape[0]
        return jax.random.normal(rng_key, (size,), self.covariance_root.dtype)

    def latent(self, variational: Array, noise: Array, batch: Array) -> Array:
        return variational + self.scale * noise

    @eqx.filter_jit
    def optimum(self, data: Float[Array, "n d"]) -> Float[Array, " d"]:
        """Mu' = (n I + Sigma)^-1 sum_i x_i, the mean of the posterior."""
        covariance = self.covariance_root @ self.covariance_root.T
        size = covariance.shape[0]
        system = data.shape[0] * jnp.eye(size, dtype=covariance.dtype) + covariance
        return jnp.linalg.solve(system, jnp.sum(data, axis=0))

    @eqx.filter_jit
    def elbo(self, mean: Float[Array, " d"], data: Float[Array, "n d"]) -> Float[Array, ""]:
        """The ELBO of the whole data set in closed form."""
        count, size = data.shape
        root = self.covariance_root
        whitened = jax.scipy.linalg.solve_triangular(root, (data - mean).T, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diagonal(root)))
        spread = self.scale**2 * jnp.sum(
            jax.scipy.linalg.solve_triangular(root, jnp.eye(size, dtype=root.dtype), lower=True)
            ** 2
        )
        fit = (
            -0.5 * jnp.sum(whitened**2)
            - count * (log_det + 0.5 * size * jnp.log(2 * jnp.pi))
            - 0.5 * count * spread
        )
        divergence = 0.5 * (
            size * (self.scale**2 - 1.0 - 2 * jnp.log(self.scale)) + jnp.sum(mean**2)
        )
        return fit - divergence
