"""A bound on how far one step may move the predictive distribution."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.checks import finite_scalar, floating_type
from vpng.errors import expected
from vpng.fisher import AbstractMetric, Predictive
from vpng.numerics.trust_region import AFTER_REJECTION
from vpng.problem import AbstractProblem, Parameters
from vpng.problem.selection import Selection, unmasked
from vpng.transform.masking import current, of_problem

HALF_A_NAT = 0.5
"""Where the quadratic model of a divergence ends: log-probabilities then change by about one."""

MOST_DATA = 128
"""Data that measure a step: a mean over so many is known to about a tenth."""

_RECOVERY = 1.01
"""Growth of a radius by the step, after rejections had shortened it."""

_STREAM = 0x7E57
"""Keeps the draws of the length apart from those that made the direction."""


class TrustRegionState(NamedTuple):
    """The state of `limit_step`.

    Attributes:
        radius: the longest step now, in nats per datum.
        length: of the last step as it came, before it was limited.
    """

    radius: Float[Array, ""]
    length: Float[Array, ""]

    def after_rejection(self) -> "TrustRegionState":
        """With a shorter radius, which grows back step by step."""
        return self._replace(radius=self.radius / AFTER_REJECTION)


def limit_step(
    problem: AbstractProblem, metric: AbstractMetric | None = None, *, radius: float = HALF_A_NAT
) -> optax.GradientTransformationExtraArgs:
    """Shorten steps d that are longer than `radius` in the metric: d.F d / 2 <= radius.

    With the predictive Fisher, d.F d / 2 is how many nats per datum the predictive distribution
    moves, to second order. It goes last in a chain, after the learning rate: rules such as RMSProp
    rescale every coordinate to the same size, whatever the metric had said of it, and their steps
    grow as the signal gives way to noise.

    `update` needs the current `batch` and an `rng_key`, both by keyword.

    Args:
        problem: the problem whose loss is minimised.
        metric: which Fisher; if left out the predictive one with a single particle, and with at
            most 128 data where each has latents of its own, so that it costs little.
        radius: in nats per datum.
    """
    if not isinstance(problem, AbstractProblem):
        raise expected("problem", "a vpng.Problem", type(problem).__name__)
    finite_scalar("radius", radius, minimum=0.0, strict=True)
    most = MOST_DATA if problem.local else None
    ruler = Predictive(num_particles=1, max_data=most) if metric is None else metric
    if not isinstance(ruler, AbstractMetric):
        raise expected("metric", "a metric such as Predictive()", type(metric).__name__)

    def init(params: Parameters) -> TrustRegionState:
        dtype = floating_type(unmasked(of_problem(params)))
        return TrustRegionState(jnp.asarray(radius, dtype), jnp.zeros((), dtype))

    def update(
        updates: Parameters,
        state: TrustRegionState,
        params: Parameters | None = None,
        *,
        batch: PyTree,
        rng_key: PRNGKeyArray,
        full_params: Parameters | None = None,
        **extra_args: Any,
    ) -> tuple[Parameters, TrustRegionState]:
        del extra_args
        params = current(params)
        selection = Selection.of(unmasked(params), params, full_params)
        key = jax.random.fold_in(rng_key, _STREAM)
        operator = ruler.operator(problem, selection.embed(selection.active), batch, key)
        pushed = operator.restricted(selection.active, selection.embed).push(unmasked(updates))
        length = 0.5 * jnp.sum(pushed**2)
        allowed = jnp.minimum(1.0, jnp.sqrt(state.radius / length))
        factor = jnp.where(length > state.radius, allowed, 1.0)
        limited = jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), updates)
        grown = jnp.minimum(_RECOVERY * state.radius, radius)
        dtype = state.radius.dtype
        return limited, TrustRegionState(grown.astype(dtype), length.astype(dtype))

    return optax.GradientTransformationExtraArgs(init, update)
