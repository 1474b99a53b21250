"""Bayesian logistic regression with a mean-field Gaussian approximation, Section 5.1."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Num, PRNGKeyArray

from vpng.checks import binary_labels, finite_scalar, matrix, positive_integer
from vpng.problem import Parameters, Problem


class MeanField(NamedTuple):
    """The parameters of q(w) = prod_i N(w_i | loc_i, exp(log_scale_i)^2)."""

    loc: Float[Array, " d"]
    log_scale: Float[Array, " d"]


class Labelled(NamedTuple):
    """Covariates, with a column of ones for the intercept, and binary labels."""

    covariates: Float[Array, "n d"]
    labels: Float[Array, " n"]


class LogisticRegression(Problem):
    """y_i ~ Bernoulli(logit = x_i . w), w ~ N(0, prior_scale^2 I), q mean field.

    Attributes:
        prior_scale: sigma_0.
    """

    num_data: int = eqx.field(static=True)
    prior_scale: float = 1.0
    local: bool = eqx.field(default=False, static=True)

    @classmethod
    def create(
        cls,
        covariates: Num[ArrayLike, "n d"],
        labels: Num[ArrayLike, " n"],
        *,
        prior_scale: float = 1.0,
        intercept: bool = True,
    ) -> tuple["LogisticRegression", Labelled]:
        """The problem and its data, checked.

        Raises:
            InputError: for covariates that are no finite matrix or labels outside {0, 1}.
        """
        finite_scalar("prior_scale", prior_scale, minimum=0.0, strict=True)
        covariates = matrix("covariates", covariates)
        labels = binary_labels("labels", labels, length=covariates.shape[0])
        if intercept:
            ones = jnp.ones((covariates.shape[0], 1), covariates.dtype)
            covariates = jnp.concatenate([covariates, ones], axis=1)
        data = Labelled(covariates, labels.astype(covariates.dtype))
        return cls(num_data=covariates.shape[0], prior_scale=prior_scale), data

    def init(self, rng_key: PRNGKeyArray, num_weights: int, *, scale: float = 1.0) -> Parameters:
        """Standard normal means and the given standard deviation for all weights."""
        positive_integer("num_weights", num_weights)
        finite_scalar("scale", scale, minimum=0.0, strict=True)
        loc = jax.random.normal(rng_key, (num_weights,))
        return Parameters(MeanField(loc, jnp.full_like(loc, jnp.log(scale))))

    def approximation(self, variational: MeanField, batch: Labelled) -> dist.Distribution:
        return dist.Normal(variational.loc, jnp.exp(variational.log_scale)).to_event(1)

    def prior(self, model: tuple[()], batch: Labelled) -> dist.Distribution:
        size = batch.covariates.shape[-1]
        return dist.Normal(jnp.zeros(size), self.prior_scale).to_event(1)

    def likelihood(self, model: tuple[()], latent: Array, batch: Labelled) -> dist.Distribution:
        return dist.Bernoulli(logits=batch.covariates @ latent)

    def observed(self, batch: Labelled) -> Array:
        return batch.labels

    def noise(self, rng_key: PRNGKeyArray, batch: Labelled) -> Array:
        size = batch.covariates.shape[-1]
        return jax.random.normal(rng_key, (size,), batch.covariates.dtype)

    def latent(self, variational: MeanField, noise: Array, batch: Labelled) -> Array:
        return variational.loc + jnp.exp(variational.log_scale) * noise
