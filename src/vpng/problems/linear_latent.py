"""The paper's counter-example: a model whose substituted Hessian is not positive semidefinite."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from vpng.problem import Parameters, Problem


class LinearLatent(Problem):
    """z_i ~ N(0, 1), x_i ~ N(theta z_i, 1), q(z_i | x_i) = N(lambda x_i, scale^2).

    Attributes:
        scale: the fixed standard deviation of q.
    """

    num_data: int = eqx.field(static=True)
    scale: float = 1.0
    local: bool = eqx.field(default=True, static=True)

    def approximation(self, variational: Array, batch: Array) -> dist.Distribution:
        return dist.Normal(variational * batch, self.scale)

    def prior(self, model: Array, batch: Array) -> dist.Distribution:
        return dist.Normal(jnp.zeros_like(batch), 1.0)

    def likelihood(self, model: Array, latent: Array, batch: Array) -> dist.Distribution:
        return dist.Normal(model * latent, 1.0)

    def observed(self, batch: Array) -> Array:
        return batch

    def noise(self, rng_key: PRNGKeyArray, batch: Array) -> Array:
        return jax.random.normal(rng_key, batch.shape, batch.dtype)

    def latent(self, variational: Array, noise: Array, batch: Array) -> Array:
        return variational * batch + self.scale * noise


class Joint(NamedTuple):
    """Draws (z, x) from the model p(z) p(x | z; theta)."""

    latent: Float[Array, " k"]
    observed: Float[Array, " k"]


def draw_joint(rng_key: PRNGKeyArray, theta: Float[Array, ""], count: int) -> Joint:
    """`count` draws of (z, x) from the model."""
    z_key, x_key = jax.random.split(rng_key)
    z = jax.random.normal(z_key, (count,), jnp.result_type(theta))
    return Joint(z, theta * z + jax.random.normal(x_key, (count,), z.dtype))


def substituted_hessian(
    problem: LinearLatent, parameters: Parameters, joint: Joint
) -> Float[Array, "2 2"]:
    """Eq. (r-fisher1) over n by Monte Carlo: minus the mean Hessian of log p(x | z = g(x, eps)).

    The same x stands on both sides of the conditioning bar, which is what breaks it; eps is what
    makes g(x, eps; lambda) equal to the drawn z.
    """

    def log_density(vector: Array, z: Array, x: Array) -> Array:
        eps = (z - parameters.variational * x) / problem.scale
        latent = problem.latent(vector[0], eps, x)
        return jnp.asarray(problem.likelihood(vector[1], latent, x).log_prob(x))

    at = jnp.stack([parameters.variational, parameters.model])
    hessians = jax.vmap(jax.hessian(log_density), in_axes=(None, 0, 0))(at, *joint)
    return -jnp.mean(hessians, axis=0)


def substituted_hessian_closed_form(theta: Float[Array, ""]) -> Float[Array, "2 2"]:
    """[[t^2 (t^2 + 1), t^2 - 1], [t^2 - 1, 1]] over (lambda, theta), per datum."""
    square = theta**2
    return jnp.array([[square * (square + 1), square - 1], [square - 1, jnp.ones_like(square)]])
