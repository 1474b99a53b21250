"""Factorised approximations z = m + s eps whose curvature is factorised by elimination.

As in `vpng.adaptive.location_scale` the block of m (and theta) is the model's curvature G in the
latents, and that of s is diag(G) + 1 / s^2. What is zero in G was found from the model, or nothing
is and G is one dense block. G and its factor are kept until G counts for half of what it did, or
the damping is another one, or a number of steps that goes with what they cost.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from vpng.adaptive.geometry import (
    Evaluation,
    Objective,
    Prepared,
    Solved,
    WeightedNoise,
    diagonal_floor,
    products_of,
    unseen,
)
from vpng.adaptive.location_scale import LocationScale
from vpng.curvature.base import MakeOperator
from vpng.numerics.moving_average import mixed
from vpng.problem import Parameters
from vpng.structure import Factorised, Sparse, Structure


class Kept(NamedTuple):
    """What is carried from step to step.

    Attributes:
        structure: of G.
        metric: G, averaged.
        lower: the factor of the last one.
        scale: its units.
        damping: its damping.
        age: steps since G was formed.
        due: weight of the metrics that were passed over since.
    """

    structure: Structure
    metric: Sparse
    lower: Sparse
    scale: Float[Array, " all_places"]
    damping: Float[Array, ""]
    age: Int[Array, ""]
    due: Float[Array, ""]


class Eliminated(LocationScale):
    """`LocationScale` with `PerCoordinate` scales and a structured metric.

    Attributes:
        structure: of G.
        longest_age: steps after which G is formed again, for its cost.
        other_damping: factor by which the damping changes before a factor is made again.
    """

    initial_share: ClassVar[float] = 0.3

    structure: Structure | None = None
    longest_age: int = eqx.field(default=1, static=True)
    other_damping: float = 4.0

    def evaluate(self, objective: Objective, params: Parameters) -> Evaluation:
        # The covariance of all particles' gradients would be a matrix of all latents.
        return super().evaluate(objective, params)._replace(draws=None)

    def init(self, params: Parameters) -> Kept:
        assert self.structure is not None
        flat, _ = self._flat(params)
        zeros = self.structure.zeros(flat.dtype)
        zero = jnp.zeros((), flat.dtype)
        places = jnp.zeros(self.structure.elimination.permutation.size, flat.dtype)
        # Copies, so that no two leaves of a state are one buffer.
        again = self.structure.zeros(flat.dtype)
        age = jnp.zeros((), jnp.int32)
        return Kept(self.structure, zeros, again, places, zero, age, zero)

    def prepare(
        self,
        state: Kept,
        metric: MakeOperator,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: WeightedNoise | None,
    ) -> Prepared[Kept]:
        constrained, unconstrain = self._scale(params)
        scale, split = self.kind.join(constrained)
        information = self.kind.information(scale)
        first = ravel_pytree(params.model)[0].size
        instead = jnp.append(jnp.full(first, 1.0 / self.kind.num_data), information)
        elimination = state.structure.elimination
        operator = lambda: metric().restricted(*self.centre(params))
        state, renewed, finite = self._renewed(state, operator, weight)
        diagonal = elimination.diagonal(state.metric)
        spare = unseen(diagonal, instead)
        diagonal = diagonal + spare
        state = self._factorised(state, renewed, spare, diagonal, damping)
        factor = Factorised(elimination, state.lower, state.scale)
        of_scale = diagonal[first:] + information
        _, pull = jax.vjp(unconstrain, constrained)
        _, unravel = self._flat(params)

        def whitened_scale(gradient: Parameters) -> Array:
            (pulled,) = pull(self._raw(gradient))
            return self.kind.join(pulled)[0] * jax.lax.rsqrt(of_scale)

        def solve(*gradients: Parameters) -> Solved:
            centres = factor.whiten(jnp.stack([self._flat(each)[0] for each in gradients]))
            scales = jnp.stack([whitened_scale(each) for each in gradients])
            model, locations = unravel(factor.unwhiten(centres[:1])[0])
            moved = split(scales[0] * jax.lax.rsqrt(of_scale))
            _, raw = jax.jvp(unconstrain, (constrained,), (moved,))
            direction = self._joined(params, model, locations, raw)
            return Solved(direction, jnp.stack([products_of(centres), products_of(scales)]))

        def square(step: Parameters) -> Float[Array, ""]:
            flat, _ = self._flat(step)
            _, motion = jax.jvp(self._constrain, (self._raw(params),), (self._raw(step),))
            moved = self.kind.join(motion)[0]
            of_centre = flat @ elimination.times(state.metric, flat) + jnp.sum(spare * flat**2)
            return of_centre + jnp.sum(of_scale * moved**2)

        return Prepared(solve, square, state, finite)

    def _renewed(
        self, state: Kept, operator, weight: Float[Array, ""]
    ) -> tuple[Kept, Array, Array]:
        """With the metric at this point, if it is time for it, and whether it was and is finite."""
        due = 1.0 - (1.0 - state.due) * (1.0 - weight)
        age = state.age + 1
        now = (due > 0) & ((due >= 0.5) | (age >= self.longest_age))

        def fresh() -> tuple[Sparse, Array]:
            found = state.structure.metric(operator())
            found = jax.tree.map(lambda new, old: new.astype(old.dtype), found, state.metric)
            return mixed(state.metric, found, due)

        kept = lambda: (state.metric, jnp.ones((), bool))
        metric, finite = jax.lax.cond(now, fresh, kept)
        age, due = jnp.where(now, 0, age), jnp.where(now, 0.0, due)
        return state._replace(metric=metric, age=age, due=due.astype(state.due.dtype)), now, finite

    def _factorised(
        self,
        state: Kept,
        renewed: Array,
        spare: Float[Array, " n"],
        diagonal: Float[Array, " n"],
        damping: Float[Array, ""],
    ) -> Kept:
        """With a factor of the metric, made again where one of the two is another one."""
        apart = jnp.maximum(damping / state.damping, state.damping / damping)

        def again() -> tuple[Sparse, Array, Array]:
            elimination = state.structure.elimination
            units = jax.lax.rsqrt(diagonal_floor(diagonal))
            matrix = elimination.with_added(state.metric, spare)
            made = elimination.factor(matrix, units, damping)
            lower = jax.tree.map(lambda new, old: new.astype(old.dtype), made.lower, state.lower)
            return lower, made.scale, damping.astype(state.damping.dtype)

        same = lambda: (state.lower, state.scale, state.damping)
        other = renewed | ~(apart <= self.other_damping)
        lower, scale, damping = jax.lax.cond(other, again, same)
        return state._replace(lower=lower, scale=scale, damping=damping)
