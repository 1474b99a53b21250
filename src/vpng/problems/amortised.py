"""Amortised inference: one normal latent vector a datum, its q given by a network."""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree

from vpng.errors import expected
from vpng.problem import Parameters, Problem


class AmortisedNormal(Problem):
    """z_i ~ N(0, I) and q(z_i | x_i) = N(loc, exp(log_scale)^2), both given by `encode`.

    What is left to a subclass is `encode`, `likelihood`, `observed` and perhaps `noise_dtype`.
    """

    latent_dim: eqx.AbstractVar[int]
    local: bool = eqx.field(default=True, static=True, kw_only=True)

    @abstractmethod
    def encode(
        self, variational: PyTree, batch: PyTree
    ) -> tuple[Float[Array, "B k"], Float[Array, "B k"]]:
        """The loc and log_scale of q(z | x)."""

    def noise_dtype(self, batch: PyTree) -> DTypeLike:
        """The floating type of eps."""
        dtype = jax.tree.leaves(batch)[0].dtype
        return jnp.result_type(dtype if jnp.issubdtype(dtype, jnp.floating) else float)

    def approximation(self, variational: PyTree, batch: PyTree) -> dist.Distribution:
        return _normal(*self.encode(variational, batch))

    def prior(self, model: PyTree, batch: PyTree) -> dist.Distribution:
        zeros = jnp.zeros((self.batch_size(batch), self.latent_dim), self.noise_dtype(batch))
        return _normal(zeros, zeros)

    def noise(self, rng_key: PRNGKeyArray, batch: PyTree) -> PyTree:
        shape = (self.batch_size(batch), self.latent_dim)
        return jax.random.normal(rng_key, shape, self.noise_dtype(batch))

    def encode_noisy(
        self, variational: PyTree, noise: PyTree, batch: PyTree
    ) -> tuple[Float[Array, "B k"], Float[Array, "B k"], Float[Array, "B k"]]:
        """loc, log_scale and the normal eps; override it if noise enters the encoder too."""
        return *self.encode(variational, batch), noise

    def latent(self, variational: PyTree, noise: PyTree, batch: PyTree) -> Float[Array, "B k"]:
        loc, log_scale, eps = self.encode_noisy(variational, noise, batch)
        return loc + jnp.exp(log_scale) * eps

    def latent_and_kl(
        self, parameters: Parameters, noise: PyTree, batch: PyTree
    ) -> tuple[Float[Array, "B k"], Float[Array, " B"]]:
        """`latent` and `kl` from one pass through the encoder, so one backward pass too."""
        loc, log_scale, eps = self.encode_noisy(parameters.variational, noise, batch)
        latent = loc + jnp.exp(log_scale) * eps
        q, p = _normal(loc, log_scale), self.prior(parameters.model, batch)
        return latent, self.divergence(q, p, latent, batch)

    def check_encoded(
        self, loc: Float[Array, "B k"], log_scale: Float[Array, "B k"], batch: PyTree
    ) -> None:
        """Refuse an encoder whose outputs are not `[B, latent_dim]`."""
        wanted = (self.batch_size(batch), self.latent_dim)
        for name, output in (("loc", loc), ("log_scale", log_scale)):
            if output.shape != wanted:
                raise expected("encoder", f"{name} of shape {wanted}", f"shape {output.shape}")


def _normal(loc: Float[Array, "B k"], log_scale: Float[Array, "B k"]) -> dist.Distribution:
    return dist.Normal(loc, jnp.exp(log_scale), validate_args=False).to_event(1)
