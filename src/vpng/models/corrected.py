"""The covariance of weights by linear response, for an estimator with a factorised posterior."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vpng.posterior import programs
from vpng.posterior.fixed_draws import fixed_draws
from vpng.posterior.frame import unit_frame
from vpng.posterior.linear_response import response
from vpng.posterior.mean_field import MeanField
from vpng.problem import Problem

MOST_WEIGHTS = 400
"""For which a matrix of all of them is formed."""


class WeightsDensity(eqx.Module):
    """Log p(y, w) of a problem whose latent is one vector, from its own likelihood and prior.

    Attributes:
        problem: the problem.
        data: all of its data.
    """

    problem: Problem
    data: tuple

    def __call__(self, weights: Float[Array, " P"]) -> Float[Array, ""]:
        likelihood = self.problem.likelihood((), weights, self.data)
        prior = self.problem.prior((), self.data)
        return jnp.sum(likelihood.log_prob(self.problem.observed(self.data))) + prior.log_prob(
            weights
        )


def corrected(
    problem: Problem, data: tuple, loc: Float[np.ndarray, " P"], scale: Float[np.ndarray, " P"]
) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, "P P"]]:
    """The means at the optimum itself, and the covariance of linear response there.

    Beyond `MOST_WEIGHTS` both are those of the approximation.
    """
    if loc.size > MOST_WEIGHTS:
        return loc, np.diag(scale**2)
    density, frame = WeightsDensity(problem, data), unit_frame(loc.size, full=True)
    draws = jnp.asarray(fixed_draws(loc.size, 0), loc.dtype)
    start = MeanField(jnp.asarray(loc), jnp.asarray(np.log(scale)))
    count = jnp.asarray(len(draws))
    found = programs.run(programs.fit, density, frame, draws, count, start, batch=draws.shape[1])
    if not np.isfinite(found.loss):
        return loc, np.diag(scale**2)
    blocks = programs.run(programs.curvature, density, frame, draws, count, found.point, batch=1)
    covariance = response(blocks, found.point).covariance
    return np.asarray(found.point.loc), covariance.astype(loc.dtype)
