"""A bound on how far one step may move the predictive distribution."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.checks import finite_scalar, floating_type
from vpng.errors import expected
from vpng.fisher import AbstractMetric, Predictive
from vpng.numerics.moving_average import mixed
from vpng.numerics.optax_types import transformation
from vpng.numerics.trust_region import AFTER_REJECTION
from vpng.problem import AbstractProblem, Parameters
from vpng.problem.selection import Selection, unmasked
from vpng.transform.masking import current, of_problem

HALF_A_NAT = 0.5
"""Where the quadratic model of a divergence ends: log-probabilities then change by about one."""

MOST_DATA = 128
"""Data that measure a step: a mean over so many is known to about a tenth."""

LATELY = 10
"""Steps over which the fall of the loss is taken: it is that of one step then, to a tenth of the
noise of a loss."""

_RECOVERY = 1.01
"""Growth of a radius by the step, after rejections had shortened it."""

_STREAM = 0x7E57
"""Keeps the draws of the length apart from those that made the direction."""


class TrustRegionState(NamedTuple):
    """The state of `limit_step`.

    Attributes:
        radius: the longest step while the loss hardly falls, in nats per datum.
        length: of the last step as it came, before it was limited.
        mean_loss: over the last steps; NaN before the first.
        fall: of the mean loss in the last step.
    """

    radius: Float[Array, ""]
    length: Float[Array, ""]
    mean_loss: Float[Array, ""]
    fall: Float[Array, ""]

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

    A Newton step gains as many nats as it is long. So while the loss falls by more than `radius` in
    a step, as it does at the beginning, steps may be as long as it falls.

    `update` needs the current `batch` and an `rng_key`, both by keyword, and takes the loss per
    datum as `value`; without it the radius is the same for all steps.

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
        zero = jnp.zeros((), dtype)
        return TrustRegionState(
            jnp.asarray(radius, dtype), zero, jnp.full_like(zero, jnp.nan), zero
        )

    def update(
        updates: Parameters,
        state: TrustRegionState,
        params: Parameters | None = None,
        *,
        batch: PyTree,
        rng_key: PRNGKeyArray,
        full_params: Parameters | None = None,
        value: Float[Array, ""] | float | None = None,
        **extra_args: Any,
    ) -> tuple[Parameters, TrustRegionState]:
        del extra_args
        state = _with_loss(state, value)
        params = current(params)
        selection = Selection.of(unmasked(params), params, full_params)
        key = jax.random.fold_in(rng_key, _STREAM)
        operator = ruler.operator(problem, selection.embed(selection.active), batch, key)
        pushed = operator.restricted(selection.active, selection.embed).push(unmasked(updates))
        length = 0.5 * jnp.sum(pushed**2)
        longest = state.radius * jnp.maximum(1.0, state.fall / radius)
        factor = jnp.where(length > longest, jnp.minimum(1.0, jnp.sqrt(longest / length)), 1.0)
        limited = jax.tree.map(lambda leaf: (factor * leaf).astype(leaf.dtype), updates)
        grown = jnp.minimum(_RECOVERY * state.radius, radius)
        dtype = state.radius.dtype
        return limited, state._replace(radius=grown.astype(dtype), length=length.astype(dtype))

    return transformation(init, update)


def _with_loss(state: TrustRegionState, value: Float[Array, ""] | float | None) -> TrustRegionState:
    if value is None:
        return state
    loss = jnp.asarray(value, state.mean_loss.dtype)
    begun = jnp.isfinite(state.mean_loss)
    before = jnp.where(begun, state.mean_loss, loss)
    now, _ = mixed(before, loss, 1.0 / LATELY)
    return state._replace(mean_loss=now, fall=before - now)
