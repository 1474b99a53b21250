"""Factorised approximations z = m + s eps whose curvature is factorised by elimination.

As in `vpng.adaptive.location_scale` the block of m (and theta) is the model's curvature G in the
latents, and that of s is diag(G) + 1 / s^2. What is zero in G was found from the model, or nothing
is and G is one dense block. G and its factor are kept while the steps stay where G was formed, for
as many of them as make it cheap beside them; a factor also until the damping is another one.
"""

from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

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


class Curved(NamedTuple):
    """G at a point, ready to be solved with.

    Attributes:
        kept: what is carried to the next step.
        finite: whether G could be evaluated.
        spare: what stands in for G of parameters that it does not see.
        diagonal: of G, with that.
        factor: of G, damped.
    """

    kept: Kept
    finite: Bool[Array, ""]
    spare: Float[Array, " n"]
    diagonal: Float[Array, " n"]
    factor: Factorised

    def square(self, moved: Float[Array, " n"]) -> Float[Array, ""]:
        """The squared length of a step of the centre."""
        elimination = self.factor.structure
        product = elimination.times(self.kept.metric, moved)
        return moved @ product + jnp.sum(self.spare * moved**2)


FAR = 0.5
"""Weight of a metric beyond which the ones before it are those of another place."""


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

    def evaluate(
        self, objective: Objective, params: Parameters, state: Kept | None = None
    ) -> Evaluation:
        """With the gradients that G, as it was before this step, predicts for the draws.

        Those of the location are G (z - m), and have mean zero; those of the scale,
        (G s eps) eps, have the mean diag(G) s. Where the log density is quadratic they are all the
        noise there is.
        """
        particles = objective.by_particle(*self.centre(params))
        if particles is None or state is None:
            # The covariance of all particles' gradients would be a matrix of all latents.
            return super().evaluate(objective, params)._replace(draws=None)
        scale, _ = self.kind.join(self._scale(params)[0])
        flat = jax.vmap(lambda centre: ravel_pytree(centre)[0])
        gradients = flat(particles.gradients)
        scores = jax.vmap(lambda centre: ravel_pytree(centre[1])[0])(particles.scores)
        noises = self.kind.noises(scale, scores)
        predicted = self._predicted(state, scale * noises, gradients.shape[1])
        diagonal = state.structure.elimination.diagonal(state.metric)[-scale.size :]
        return Evaluation(
            particles.losses,
            self._by_half(params, gradients, noises, self.kind.entropy(scale)),
            self._by_half(params, predicted, noises, diagonal * scale),
        )

    def _predicted(self, state: Kept, away: Float[Array, "K d"], size: int) -> Float[Array, "K n"]:
        """G times a motion of the latents, of every particle."""
        padded = jnp.pad(away, ((0, 0), (size - away.shape[1], 0)))
        times = state.structure.elimination.times
        return jax.vmap(lambda motion: times(state.metric, motion))(padded)

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
        curved = self._curved(state, metric, params, damping, weight)
        factor = curved.factor
        constrained, unconstrain = self._scale(params)
        scale, split = self.kind.join(constrained)
        first = ravel_pytree(params.model)[0].size
        of_scale = curved.diagonal[first:] + self.kind.information(scale)
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
            return curved.square(flat) + jnp.sum(of_scale * moved**2)

        return Prepared(solve, square, curved.kept, curved.finite)

    def _curved(
        self,
        state: Kept,
        metric: MakeOperator,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
    ) -> Curved:
        """G here, as it is kept or anew."""
        scale, _ = self.kind.join(self._scale(params)[0])
        first = ravel_pytree(params.model)[0].size
        information = self.kind.information(scale)
        instead = jnp.append(jnp.full(first, 1.0 / self.kind.num_data), information)
        elimination = state.structure.elimination
        operator = lambda: metric().restricted(*self.centre(params))
        state, renewed, finite = self._renewed(state, operator, weight)
        diagonal = elimination.diagonal(state.metric)
        spare = unseen(diagonal, instead)
        diagonal = diagonal + spare
        state = self._factorised(state, renewed, spare, diagonal, damping)
        factor = Factorised(elimination, state.lower, state.scale)
        return Curved(state, finite, spare, diagonal, factor)

    def _renewed(
        self, state: Kept, operator, weight: Float[Array, ""]
    ) -> tuple[Kept, Array, Array]:
        """With the metric at this point, if it is time for it, and whether it was and is finite."""
        due = 1.0 - (1.0 - state.due) * (1.0 - weight)
        age = state.age + 1
        now = (due > 0) & ((weight >= FAR) | (age >= self.longest_age))

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
