"""The objective: loss = -ELBO per datum, its gradient and its Monte Carlo standard error.

The weights are `Problem`'s: 1/B in `likelihood_sites`, 1/B or 1/n in `latent_weight`. The mean
over particles is taken here, in `vpng.fisher.metric` and in `hessian_free.GaussNewton`; beta enters
here and in the last. Per datum, with B of n data in the batch and K particles,

    local latents:   loss = 1/K sum_k 1/B sum_i [ -log p(x_i | z_ik) + beta KL_i ]
    global latents:  loss = 1/K sum_k [ 1/B sum_i -log p(x_i | z_k) + beta/n KL ],

so n times the loss estimates the negative ELBO of the whole data set, eq. (elbo).
"""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from vpng.checks import finite_scalar, of_kind, positive_integer
from vpng.errors import InputError, expected
from vpng.problem import AbstractProblem, Parameters

Schedule = optax.Schedule


class Estimate(NamedTuple):
    """A Monte Carlo estimate of the loss per datum.

    Attributes:
        loss: the mean over particles of -ELBO per datum.
        standard_error: of that mean, over the draws of the particles; infinite for one particle.
    """

    loss: Float[Array, ""]
    standard_error: Float[Array, ""]

    @property
    def elbo(self) -> Float[Array, ""]:
        """The ELBO per datum; higher is better."""
        return -self.loss


class AbstractGradient(eqx.Module):
    """How the gradient of an expectation over q is estimated."""

    @abstractmethod
    def surrogate(
        self,
        problem: AbstractProblem,
        parameters: Parameters,
        noise: PyTree,
        batch: PyTree,
        kl_weight: Float[Array, ""] | float,
    ) -> tuple[Float[Array, ""], Float[Array, " K"]]:
        """A scalar whose gradient estimates the loss's, and the loss of every particle."""


class Reparameterised(AbstractGradient):
    """Differentiates through z = g(x, eps; lambda)."""

    def surrogate(
        self,
        problem: AbstractProblem,
        parameters: Parameters,
        noise: PyTree,
        batch: PyTree,
        kl_weight: Float[Array, ""] | float,
    ) -> tuple[Float[Array, ""], Float[Array, " K"]]:
        if not problem.reparameterised(parameters.variational, batch):
            raise expected(
                "gradient",
                "ScoreFunction(), since the approximation cannot be reparameterised",
                "Reparameterised()",
            )

        def one(noise: PyTree) -> Array:
            latent, divergence = problem.latent_and_kl(parameters, noise, batch)
            terms = _negative_log_likelihood(problem, parameters.model, latent, batch)
            return jnp.sum(terms) + kl_weight * problem.latent_weight(batch) * jnp.sum(divergence)

        losses = jax.vmap(one)(noise)
        return jnp.mean(losses), losses


class ScoreFunction(AbstractGradient):
    """The score-function estimator, for approximations that cannot be reparameterised.

    grad_lambda E_q[f] = E_q[(f - b) grad_lambda log q(z | x; lambda)], with the baseline b of a
    particle the mean of f over the *other* particles (leave-one-out, so still unbiased). Local
    latents use the terms of their own datum alone. Needs at least two particles.

    The curvature of such lambda: their predictive Fisher is zero, since no gradient flows through
    z, so `scale_by_vpng` takes `Predictive() + Variational()` for them unless told otherwise: theta
    gets the predictive Fisher, lambda the classic F_q.
    """

    def surrogate(
        self,
        problem: AbstractProblem,
        parameters: Parameters,
        noise: PyTree,
        batch: PyTree,
        kl_weight: Float[Array, ""] | float,
    ) -> tuple[Float[Array, ""], Float[Array, " K"]]:
        weight = problem.latent_weight(batch)

        def one(noise: PyTree) -> tuple[Array, Array, Array]:
            drawn = problem.latent(parameters.variational, noise, batch)
            latent = jax.lax.stop_gradient(drawn)
            terms = _negative_log_likelihood(problem, parameters.model, latent, batch)
            divergence = kl_weight * weight * problem.kl(parameters, latent, batch)
            sites = problem.approximation_sites(parameters.variational, latent, batch)
            log_q = [site.distribution.log_prob(site.value) for site in sites]
            if problem.local:
                size = problem.batch_size(batch)
                log_q = [jnp.reshape(values, (size, -1)).sum(axis=1) for values in log_q]
            else:
                log_q = [jnp.sum(values) for values in log_q]
            # A KL of the whole batch depends on every datum's latents: all of it goes with each.
            together = sum(log_q, jnp.zeros(()))
            return jnp.sum(terms) + jnp.sum(divergence), terms + divergence, together

        losses, values, log_q = jax.vmap(one)(noise)
        count = losses.shape[0]
        if count < 2:
            raise InputError(
                "num_particles: expected at least 2 for the leave-one-out baseline of "
                f"ScoreFunction(), got {count}."
            )
        fixed = jax.lax.stop_gradient(values)
        baseline = (jnp.sum(fixed, axis=0) - fixed) / (count - 1)
        scores = jnp.sum((fixed - baseline) * log_q) / count
        # Only the gradient of `scores` is wanted: its value must not move the loss.
        return jnp.mean(losses) + scores - jax.lax.stop_gradient(scores), losses


class ELBO(eqx.Module):
    """The objective that is optimised: how many particles, which gradient, which KL weight.

    Attributes:
        num_particles: draws of eps for each step.
        kl_weight: beta, a number or a schedule step -> number.
        gradient: the gradient estimator.
    """

    num_particles: int = eqx.field(default=10, static=True)
    kl_weight: float | Schedule = 1.0
    gradient: AbstractGradient = Reparameterised()

    def __check_init__(self) -> None:
        positive_integer("num_particles", self.num_particles)
        wanted = "an estimator such as Reparameterised() or ScoreFunction()"
        of_kind("gradient", self.gradient, AbstractGradient, wanted)
        if not callable(self.kl_weight):
            finite_scalar("kl_weight", self.kl_weight, minimum=0.0, strict=False)

    def weight_at(self, step: Int[Array, ""] | int) -> Float[Array, ""] | float:
        """Beta at `step`."""
        return jnp.asarray(self.kl_weight(step)) if callable(self.kl_weight) else self.kl_weight

    def estimate(
        self,
        rng_key: PRNGKeyArray,
        problem: AbstractProblem,
        parameters: Parameters,
        batch: PyTree,
        *,
        step: Int[Array, ""] | int = 0,
    ) -> Estimate:
        """The loss on `batch` with its standard error."""
        _, losses = self._surrogate(rng_key, problem, parameters, batch, step)
        return estimate_of(losses)

    def estimate_and_gradient(
        self,
        rng_key: PRNGKeyArray,
        problem: AbstractProblem,
        parameters: Parameters,
        batch: PyTree,
        *,
        step: Int[Array, ""] | int = 0,
    ) -> tuple[Estimate, Parameters]:
        """The loss on `batch` and its gradient."""

        def surrogate(parameters: Parameters) -> tuple[Array, Array]:
            return self._surrogate(rng_key, problem, parameters, batch, step)

        gradient, losses = jax.grad(surrogate, has_aux=True)(parameters)
        return estimate_of(losses), gradient

    def _surrogate(
        self,
        rng_key: PRNGKeyArray,
        problem: AbstractProblem,
        parameters: Parameters,
        batch: PyTree,
        step: Int[Array, ""] | int,
    ) -> tuple[Array, Array]:
        keys = jax.random.split(rng_key, self.num_particles)
        noise = jax.vmap(problem.noise, in_axes=(0, None))(keys, batch)
        return self.gradient.surrogate(problem, parameters, noise, batch, self.weight_at(step))


def estimate_of(losses: Float[Array, " K"]) -> Estimate:
    """The mean of the particles' losses and its standard error."""
    count = losses.shape[0]
    if count == 1:
        return Estimate(losses[0], jnp.full((), jnp.inf, losses.dtype))
    return Estimate(jnp.mean(losses), jnp.std(losses, ddof=1) / jnp.sqrt(count))


def _negative_log_likelihood(
    problem: AbstractProblem, model: PyTree, latent: PyTree, batch: PyTree
) -> Float[Array, "..."]:
    """Weighted -log p(x | z), summed over sites; the data along the first axis if local."""
    sites = problem.likelihood_sites(model, latent, batch)
    terms = [-site.scale * site.distribution.log_prob(site.value) for site in sites]
    if problem.local:
        terms = [jnp.reshape(term, (jnp.shape(term)[0], -1)).sum(axis=1) for term in terms]
        return sum(terms[1:], start=terms[0])
    return sum((jnp.sum(term) for term in terms), start=jnp.asarray(0.0))
