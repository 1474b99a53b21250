"""The best factorised normal approximation under fixed draws, by Newton's method."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from vpng.curvature.truncated import truncated_conjugate_gradient
from vpng.numerics.trees import where
from vpng.numerics.trust_region import TrustRegion
from vpng.posterior.batches import over
from vpng.posterior.cost import Cost
from vpng.posterior.frame import AbstractFrame

Density = Callable[[Float[Array, " P"]], Float[Array, ""]]

DAMPING = TrustRegion(
    lower=0.2, worse=2.0, rejected=5.0, failed=10.0, minimum=1e-8, maximum=1e8
)  # fmt: skip
"""Relative to the Fisher information of the approximation."""
MOST_STEPS = 200
MOST_PRODUCTS = 100
"""Of conjugate gradients in one step."""


class MeanField(NamedTuple):
    """N(loc, diag(exp(2 log_scale))), in the coordinates of a frame."""

    loc: Float[Array, " P"]
    log_scale: Float[Array, " P"]

    def moved(self, step: Float[Array, " 2P"]) -> "MeanField":
        """The approximation after a step in units of its own Fisher information.

        That of a location is 1 / s^2, that of a logarithm of a scale is 2.
        """
        loc, log_scale = jnp.split(step, 2)
        return MeanField(
            self.loc + jnp.exp(self.log_scale) * loc, self.log_scale + log_scale / jnp.sqrt(2.0)
        )

    def at(self, draws: Float[Array, "... P"]) -> Float[Array, "... P"]:
        """The coordinates that belong to standard normal draws."""
        return self.loc + jnp.exp(self.log_scale) * draws


class Fit(NamedTuple):
    """Where Newton's method ended.

    Attributes:
        point: the approximation.
        loss: its negative ELBO under the fixed draws, up to the entropy's constant.
        converged: whether nothing more was to be gained.
        steps: that were tried.
        products: with the Hessian, in all of them.
        path: the loss before each of them, the rest NaN.
    """

    point: MeanField
    loss: Float[Array, ""]
    converged: Bool[Array, ""]
    steps: Int[Array, ""]
    products: Int[Array, ""]
    path: Float[Array, " N"]

    def cost(self, num_draws: int) -> Cost:
        """Evaluations of the log density; a step tries one other point."""
        steps = int(self.steps)
        return Cost(steps * num_draws, steps * num_draws, int(self.products) * num_draws)


def negative_elbo(
    density: Density, frame: AbstractFrame, draws: Float[Array, "M P"], point: MeanField
) -> Float[Array, ""]:
    """The negative ELBO under fixed draws, up to a constant of the frame."""
    heights = over(density, density)(frame(point.at(draws)))
    return -jnp.mean(heights) - jnp.sum(point.log_scale)


def mean_over(
    function: Callable[[Float[Array, "M P"]], PyTree],
    draws: Float[Array, "C M P"],
    count: Int[Array, ""],
) -> PyTree:
    """The mean of a function of a chunk of draws, one chunk after the other."""
    none = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(function, draws[0])
    )
    add = lambda place, total: jax.tree.map(jnp.add, total, function(draws[place]))
    total = jax.lax.fori_loop(0, count, add, none)
    return jax.tree.map(lambda leaf: leaf / count, total)


class _Search(NamedTuple):
    point: MeanField
    loss: Float[Array, ""]
    damping: Float[Array, ""]
    converged: Bool[Array, ""]
    stuck: Bool[Array, ""]
    steps: Int[Array, ""]
    products: Int[Array, ""]
    path: Float[Array, " N"]


def fit(
    density: Density,
    frame: AbstractFrame,
    draws: Float[Array, "C M P"],
    count: Int[Array, ""],
    start: MeanField,
) -> Fit:
    """The minimum of the negative ELBO under fixed draws.

    Newton's method by conjugate gradients with Levenberg and Marquardt's damping, in units of the
    Fisher information of the approximation: those of the latents do not matter.

    Args:
        density: log p(x, z).
        frame: the coordinates of the approximation.
        draws: chunks of standard normal draws.
        count: how many of the chunks are used.
        start: where to begin.
    """
    size = draws.shape[-1]
    loss = lambda point, chunk: negative_elbo(density, frame, chunk, point)
    mean = lambda function: mean_over(function, draws, count)
    limit = min(2 * size, MOST_PRODUCTS)
    resolution = 8 * jnp.finfo(draws.dtype).eps
    origin = jnp.zeros(2 * size, draws.dtype)

    def step(search: _Search) -> _Search:
        slope = lambda chunk: jax.value_and_grad(lambda to: loss(search.point.moved(to), chunk))
        here, gradient = mean(lambda chunk: slope(chunk)(origin))
        bent = lambda chunk, vector: jax.jvp(slope(chunk), (origin,), (vector,))[1][1]
        damped = lambda vector: mean(lambda chunk: bent(chunk, vector)) + search.damping * vector
        direction, products, _ = truncated_conjugate_gradient(
            damped,
            -gradient,
            max_steps=limit,
            rtol=jnp.clip(jnp.sqrt(jnp.linalg.norm(gradient)), 1e-6, 0.1),
        )
        # Residuals are orthogonal to the solution: u'(H + mu)u = -g'u.
        promised = 0.5 * (search.damping * direction @ direction - gradient @ direction)
        point = search.point.moved(direction)
        reached = mean(lambda chunk: loss(point, chunk))
        gained = here - reached
        noise = resolution * jnp.maximum(jnp.abs(here), 1.0)
        taken = jnp.isfinite(reached) & (gained > -noise)
        after = DAMPING.after_step(
            search.damping, good=gained > 0.5 * promised, bad=gained < 0.1 * promised
        )
        done = taken & (jnp.abs(promised) <= noise) & (search.damping < 1.0)
        hopeless = ~jnp.isfinite(here) | (~taken & (search.damping >= DAMPING.maximum))
        return _Search(
            where(taken, point, search.point),
            jnp.where(taken, reached, here),
            jnp.where(taken, after, DAMPING.after_rejection(search.damping)),
            done,
            hopeless,
            search.steps + 1,
            search.products + products,
            search.path.at[search.steps].set(here),
        )

    path = jnp.full(MOST_STEPS, jnp.nan, draws.dtype)
    no = jnp.zeros((), bool)
    one = jnp.ones((), draws.dtype)
    zero = jnp.zeros((), jnp.int32)
    begun = _Search(start, jnp.inf * one, one, no, no, zero, zero, path)
    going = lambda search: ~search.converged & ~search.stuck & (search.steps < MOST_STEPS)
    ended = jax.lax.while_loop(going, step, begun)
    return Fit(ended.point, ended.loss, ended.converged, ended.steps, ended.products, ended.path)
