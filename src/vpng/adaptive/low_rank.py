"""Approximations z = m + s (W e + d) with a factor W of low rank, e and d standard normal.

With G, the curvature in the latents, taken as constant over the draws, and D = diag(s), a motion of
a column of W moves z by D dW_j e_j, and one of s by ds (W e + d). So

    F of every column of W is D G D,        F_s = diag(G) (1 + |W_i|^2) + 1 / s^2,

and the columns do not couple, since E[e e^T] = I. What the entropy has to say of W is no curvature
but a slope outwards: it is left to the gradient.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from vpng.adaptive.eliminated import Eliminated, Kept
from vpng.adaptive.geometry import (
    Evaluation,
    Objective,
    Prepared,
    Solved,
    WeightedNoise,
    products_of,
)
from vpng.curvature.base import MakeOperator
from vpng.problem import Parameters
from vpng.products import product

COLUMNS = 2
"""The block of W, after those of the location and the scale."""

FIRST = 0.1
"""Of the spread that W has at first, where it is zero."""


class LowRank(Eliminated):
    """The metric of the location, of `PerCoordinate` scales and of the columns of W.

    Attributes:
        columns: name of the parameter W.
    """

    num_blocks: ClassVar[int] = 3

    columns: str = eqx.field(default="", static=True)

    def evaluate(
        self, objective: Objective, params: Parameters, state: Kept | None = None
    ) -> Evaluation:
        """From the derivatives f of every particle in its location and its score h there.

        With u = W e + d = (W W^T + 1) D h and E[e | z] = W^T D h the gradients are D f h^T D W and
        f u. Those that G predicts, f = G D u, have the means D G D W and diag(G D (W W^T + 1)).
        """
        particles = objective.by_particle(*self.centre(params))
        if particles is None or state is None:
            return objective.halves(params)
        scale, _ = self.kind.join(self._scale(params)[0])
        columns = params.variational[self.columns]
        # At W = 0 the gradient of W vanishes, and nothing would lead away.
        signs = jax.random.rademacher(jax.random.key(0), columns.shape, columns.dtype)
        columns = jnp.where(jnp.any(columns != 0), columns, FIRST * signs / columns.shape[1])
        flat = jax.vmap(lambda centre: ravel_pytree(centre)[0])
        gradients = flat(particles.gradients)
        scores = jax.vmap(lambda centre: ravel_pytree(centre[1])[0])(particles.scores)
        inner = product(scale * scores, columns)
        noises = product(inner, columns.T) + scale * scores
        size, (count, rank) = gradients.shape[1], inner.shape
        predicted = self._predicted(state, scale * noises, size)
        turned = self._predicted(state, (scale[:, None] * columns).T, size)[:, -scale.size :].T
        diagonal = state.structure.elimination.diagonal(state.metric)[-scale.size :]
        gram = jnp.eye(rank, dtype=columns.dtype) + product(columns.T, columns)
        outwards = jnp.linalg.solve(gram, columns.T).T / self.kind.num_data

        def halves(centres: Array, of_scale: Array, of_columns: Array) -> Parameters:
            found = self._by_half(self._without(params), centres, noises, of_scale)

            def half(centres: Array, inner: Array) -> Array:
                away = centres[:, -scale.size :]
                away = away - jnp.mean(away, axis=0)
                moved = scale[:, None] * product(away.T, inner) / max(1, inner.shape[0] - 1)
                return moved - of_columns

            parts = [leaf.reshape(2, count // 2, -1) for leaf in (centres, inner)]
            return self._with(found, jax.vmap(half)(*parts), params)

        return Evaluation(
            particles.losses,
            halves(gradients, self.kind.entropy(scale), outwards),
            halves(
                predicted,
                diagonal * scale + jnp.sum(turned * columns, axis=1),
                scale[:, None] * turned,
            ),
        )

    def by_block(self, factors: Float[Array, " blocks"], tree: Parameters) -> Parameters:
        moved = super().by_block(factors, tree)
        columns = factors[COLUMNS] * tree.variational[self.columns]
        return moved._replace(variational={**moved.variational, self.columns: columns})

    def drawn_in(self, params: Parameters) -> Parameters:
        nearer = super().drawn_in(self._without(params))
        return self._with(nearer, 0.5 * params.variational[self.columns], params)

    def longest(self, direction: Parameters, params: Parameters) -> Float[Array, " blocks"]:
        of_others = super().longest(self._without(direction), self._without(params))
        columns, moved = (each.variational[self.columns] for each in (params, direction))
        size = jnp.sum(moved**2, axis=1) / (1.0 + jnp.sum(columns**2, axis=1))
        return jnp.append(of_others, jax.lax.rsqrt(jnp.maximum(jnp.max(size), 1e-30)))

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
        columns = params.variational[self.columns]
        first = ravel_pytree(params.model)[0].size
        spread = 1.0 + jnp.sum(columns**2, axis=1)
        of_scale = curved.diagonal[first:] * spread + self.kind.information(scale)
        _, pull = jax.vjp(unconstrain, constrained)
        _, unravel = self._flat(params)
        # The model's parameters do not move with W.
        padded = lambda rows: jnp.pad(rows, ((0, 0), (first, 0)))

        def whitened_scale(gradient: Parameters) -> Array:
            (pulled,) = pull(self._raw(gradient))
            return self.kind.join(pulled)[0] * jax.lax.rsqrt(of_scale)

        def solve(*gradients: Parameters) -> Solved:
            centres = factor.whiten(jnp.stack([self._flat(each)[0] for each in gradients]))
            scales = jnp.stack([whitened_scale(each) for each in gradients])
            of_columns = [each.variational[self.columns] / scale[:, None] for each in gradients]
            rows = jnp.concatenate([each.T for each in of_columns])
            whitened = factor.whiten(padded(rows)).reshape(len(gradients), columns.shape[1], -1)
            model, locations = unravel(factor.unwhiten(centres[:1])[0])
            _, raw = jax.jvp(
                unconstrain, (constrained,), (split(scales[0] * jax.lax.rsqrt(of_scale)),)
            )
            turned = factor.unwhiten(whitened[0])[:, first:].T / scale[:, None]
            direction = self._joined(self._without(params), model, locations, raw)
            products = jnp.stack([products_of(each) for each in (centres, scales, whitened)])
            return Solved(self._with(direction, turned, params), products)

        def square(step: Parameters) -> Float[Array, ""]:
            flat, _ = self._flat(step)
            _, motion = jax.jvp(self._constrain, (self._raw(params),), (self._raw(step),))
            moved = self.kind.join(motion)[0]
            rows = padded((scale[:, None] * step.variational[self.columns]).T)
            of_columns = jnp.sum(jax.vmap(curved.square)(rows))
            return curved.square(flat) + jnp.sum(of_scale * moved**2) + of_columns

        return Prepared(solve, square, curved.kept, curved.finite)

    def _without(self, tree: Parameters) -> Parameters:
        variational = {n: leaf for n, leaf in tree.variational.items() if n != self.columns}
        return tree._replace(variational=variational)

    def _with(self, tree: Parameters, columns: Array, like: Parameters) -> Parameters:
        found = {**tree.variational, self.columns: columns}
        return tree._replace(variational={name: found[name] for name in like.variational})
