"""Approximations z = m + S eps: the metric of the scale follows from that of the location.

Moving the location moves the latents themselves, so the block of F that belongs to m (and theta) is
the model's curvature G in the latents, averaged over the draws. With G taken as constant over them,
E over eps of the rest is known, since E[eps eps^T] = I:

    S = diag(s):      F_s = diag(G) + 1 / s^2,
    S = L (Cholesky): F of column j of L is G[j:, j:], and 1 / L_jj^2 on its first entry,

where the second terms are the curvature of the negative entropy. The blocks of m and S do not
couple. No P x P matrix is formed, and one draw is enough for all directions of L.

Noise of the gradient in m has a covariance C, and that in S, f eps^T, has about C in every column:
C is added to G where noise is all there is, and slows both blocks down alike.

The gradient in S is the mean over K draws of f_k eps_k^T, f_k the gradient in z. While m is far
off, f_k is large and nearly the same for all draws, and this is mostly noise. Since E[eps] = 0, the
mean of the other draws may be subtracted from every f_k, which leaves
K / (K - 1) (mean f eps^T - mean f mean eps^T).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PyTree
from numpyro.distributions.transforms import Transform

from vpng.adaptive.geometry import (
    AbstractGeometry,
    Block,
    Evaluation,
    Objective,
    Prepared,
    Solved,
    WeightedNoise,
    diagonal_floor,
    products_of,
    unseen,
)
from vpng.curvature.base import MakeOperator
from vpng.numerics.moving_average import mixed, mixed_if_any
from vpng.problem import Parameters
from vpng.products import product


class Factor(NamedTuple):
    """(G + damping)^-1 = V^T V with V upper triangular.

    Upper and not lower, since then the trailing blocks of G have the trailing blocks of V. V is
    formed once, so that the many solves of one step are plain products.
    """

    matrix: Float[Array, "n n"]
    root: Float[Array, "n n"]

    @classmethod
    def of(cls, matrix: Float[Array, "n n"], damping: Float[Array, ""]) -> "Factor":
        """Of `matrix`, damped relative to its diagonal."""
        scale = jax.lax.rsqrt(diagonal_floor(jnp.diagonal(matrix)))
        unit = jnp.eye(scale.size, dtype=scale.dtype)
        correlation = scale[:, None] * matrix * scale + damping * unit
        upper = jnp.linalg.cholesky(correlation[::-1, ::-1])[::-1, ::-1]
        return cls(matrix, solve_triangular(upper, unit) * scale)

    def trailing(self, start: int) -> "Factor":
        """Of the trailing block."""
        return Factor(self.matrix[start:, start:], self.root[start:, start:])


class AbstractScale(eqx.Module):
    """How the scale S is parameterised, in its constrained coordinates.

    Attributes:
        num_data: of the problem: gradients and metric are per datum, the entropy is not.
    """

    num_data: eqx.AbstractVar[int | float]

    @abstractmethod
    def relative(self, scale: Float[Array, "..."], step: Float[Array, "..."]) -> Float[Array, ""]:
        """The size of a step of S relative to S, |S^-1 dS|."""

    @abstractmethod
    def noises(
        self, scale: Float[Array, "..."], scores: Float[Array, "K d"]
    ) -> Float[Array, "K d"]:
        """S^T h: the noise eps of every particle from its score h of the location, S^-T eps."""

    @abstractmethod
    def product(
        self, locations: Float[Array, "K d"], noises: Float[Array, "K d"]
    ) -> Float[Array, "..."]:
        """The mean of f_k eps_k^T, f_k the gradient in z and eps_k the noise of a particle."""

    def centred(
        self, locations: Float[Array, "K d"], noises: Float[Array, "K d"]
    ) -> Float[Array, "..."]:
        """The same in expectation, from f_k less the mean of the others."""
        count = locations.shape[0]
        if count < 2:
            return self.product(locations, noises)
        away = locations - jnp.mean(locations, axis=0)
        return self.product(away, noises) * count / (count - 1)

    @abstractmethod
    def entropy(self, scale: Float[Array, "..."]) -> Float[Array, "..."]:
        """The gradient of the entropy log |det S|, per datum."""

    @abstractmethod
    def information(self, scale: Float[Array, "..."]) -> Float[Array, " d"]:
        """The diagonal of the Fisher of q in the location, per datum: 1 / (n var z)."""

    @abstractmethod
    def join(self, leaves: tuple[Array, ...]) -> tuple[Float[Array, "..."], Callable]:
        """The parameters of S in one array, and the way back."""

    @abstractmethod
    def whiten(
        self, factor: Factor, scale: Float[Array, "..."], gradient: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """W g with W^T W the inverse of the metric of S."""

    @abstractmethod
    def unwhiten(
        self, factor: Factor, scale: Float[Array, "..."], whitened: Float[Array, "..."]
    ) -> Float[Array, "..."]:
        """W^T w."""

    @abstractmethod
    def square(
        self, matrix: Float[Array, "d d"], scale: Float[Array, "..."], step: Float[Array, "..."]
    ) -> Float[Array, ""]:
        """The squared length of a step of S."""


class PerCoordinate(AbstractScale):
    """S = diag(s)."""

    num_data: int | float = eqx.field(static=True)

    def relative(self, scale: Float[Array, " d"], step: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.max(jnp.abs(step / scale))

    def noises(self, scale: Float[Array, " d"], scores: Float[Array, "K d"]) -> Float[Array, "K d"]:
        return scale * scores

    def product(
        self, locations: Float[Array, "K d"], noises: Float[Array, "K d"]
    ) -> Float[Array, " d"]:
        return jnp.mean(locations * noises, axis=0)

    def entropy(self, scale: Float[Array, " d"]) -> Float[Array, " d"]:
        return 1.0 / (self.num_data * scale)

    def information(self, scale: Float[Array, " d"]) -> Float[Array, " d"]:
        return 1.0 / (self.num_data * scale**2)

    def join(self, leaves: tuple[Array, ...]) -> tuple[Float[Array, " d"], Callable]:
        return ravel_pytree(leaves)

    def whiten(
        self, factor: Factor, scale: Float[Array, " d"], gradient: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        return gradient * jax.lax.rsqrt(self._information(factor.matrix, scale))

    def unwhiten(
        self, factor: Factor, scale: Float[Array, " d"], whitened: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        return self.whiten(factor, scale, whitened)

    def square(
        self, matrix: Float[Array, "d d"], scale: Float[Array, " d"], step: Float[Array, " d"]
    ) -> Float[Array, ""]:
        return jnp.sum(step**2 * self._information(matrix, scale))

    def _information(
        self, matrix: Float[Array, "d d"], scale: Float[Array, " d"]
    ) -> Float[Array, " d"]:
        return jnp.diagonal(matrix) + self.information(scale)


class Cholesky(AbstractScale):
    """S = L, lower triangular."""

    num_data: int | float = eqx.field(static=True)

    def relative(self, scale: Float[Array, "d d"], step: Float[Array, "d d"]) -> Float[Array, ""]:
        return jnp.sqrt(jnp.sum(solve_triangular(scale, step, lower=True) ** 2))

    def noises(
        self, scale: Float[Array, "d d"], scores: Float[Array, "K d"]
    ) -> Float[Array, "K d"]:
        return product(scores, scale)

    def product(
        self, locations: Float[Array, "K d"], noises: Float[Array, "K d"]
    ) -> Float[Array, "d d"]:
        return jnp.tril(product(locations.T, noises)) / locations.shape[0]

    def entropy(self, scale: Float[Array, "d d"]) -> Float[Array, "d d"]:
        return jnp.diag(1.0 / (self.num_data * jnp.diagonal(scale)))

    def information(self, scale: Float[Array, "d d"]) -> Float[Array, " d"]:
        return 1.0 / (self.num_data * jnp.sum(scale**2, axis=1))

    def join(self, leaves: tuple[Array, ...]) -> tuple[Float[Array, "d d"], Callable]:
        (only,) = leaves
        return only, lambda leaf: (leaf,)

    def whiten(
        self, factor: Factor, scale: Float[Array, "d d"], gradient: Float[Array, "d d"]
    ) -> Float[Array, "d d"]:
        # Column j is solved with G[j:, j:], whose V is a trailing block.
        return self._damped(factor, scale, product(factor.root, jnp.tril(gradient)))

    def unwhiten(
        self, factor: Factor, scale: Float[Array, "d d"], whitened: Float[Array, "d d"]
    ) -> Float[Array, "d d"]:
        return jnp.tril(product(factor.root.T, self._damped(factor, scale, whitened)))

    def _damped(
        self, factor: Factor, scale: Float[Array, "d d"], whitened: Float[Array, "d d"]
    ) -> Float[Array, "d d"]:
        # V F V^T = I + V_jj^2 / (n L_jj^2) on the first entry: V of a unit vector has no other.
        ratio = jnp.diagonal(factor.root) / jnp.diagonal(scale)
        first = jax.lax.rsqrt(1.0 + ratio**2 / self.num_data)
        return jnp.tril(whitened, -1) + jnp.diag(first * jnp.diagonal(whitened))

    def square(
        self, matrix: Float[Array, "d d"], scale: Float[Array, "d d"], step: Float[Array, "d d"]
    ) -> Float[Array, ""]:
        relative = jnp.diagonal(step) / jnp.diagonal(scale)
        return jnp.sum(step * product(matrix, step)) + jnp.sum(relative**2) / self.num_data


class AveragedMetric(NamedTuple):
    """What is averaged over steps.

    Attributes:
        metric: G, with the model's parameters before the latents.
        noise: the covariance of the gradient in the same coordinates.
    """

    metric: Float[Array, "n n"]
    noise: Float[Array, "n n"]


class LocationScale(AbstractGeometry[AveragedMetric]):
    """The metric of z = m + S eps and of the model's parameters.

    Attributes:
        locations: names of the location parameters, m when put together in this order.
        scales: names of the scale parameters, S when put together in this order.
        transforms: from each unconstrained scale parameter to the scale.
        kind: how S is parameterised.
        loudest: noise over curvature beyond which noise no longer slows steps down: there the
            approximation is far too wide, and has to shrink before anything else.
    """

    solves_cheaply: ClassVar[bool] = True
    num_blocks: ClassVar[int] = 2
    num_draws: ClassVar[int] = 1
    initial_share: ClassVar[float] = 0.7
    tolerated_noise: ClassVar[float] = 1.0

    locations: tuple[str, ...] = eqx.field(static=True)
    scales: tuple[str, ...] = eqx.field(static=True)
    transforms: tuple[Transform, ...] = eqx.field(static=True)
    kind: AbstractScale
    loudest: float = 60.0

    def evaluate(
        self, objective: Objective, params: Parameters, state: PyTree = None
    ) -> Evaluation:
        """All from the derivatives of every particle in its location: f_k, and S^-T eps_k."""
        particles = objective.by_particle(*self.centre(params))
        if particles is None:
            return objective.halves(params)
        constrained, _ = self._scale(params)
        scale, _ = self.kind.join(constrained)
        flat = jax.vmap(lambda centre: ravel_pytree(centre)[0])
        of_latents = jax.vmap(lambda centre: ravel_pytree(centre[1])[0])
        gradients = flat(particles.gradients)
        scores = flat(particles.scores) / self.kind.num_data
        noises = self.kind.noises(scale, of_latents(particles.scores))
        entropy = self.kind.entropy(scale)
        return Evaluation(
            particles.losses,
            self._by_half(params, gradients, noises, entropy),
            self._by_half(params, scores, noises, entropy),
            (gradients, scores),
        )

    def _by_half(
        self,
        params: Parameters,
        centres: Float[Array, "K n"],
        noises: Float[Array, "K d"],
        known: Float[Array, "..."],
    ) -> Parameters:
        """Gradients of both halves from those of every particle in the centre.

        Args:
            params: the point.
            centres: one of every particle, f_k.
            noises: of every particle, eps_k.
            known: what is subtracted from the mean of f_k eps_k^T.
        """
        constrained, _ = self._scale(params)
        _, split = self.kind.join(constrained)
        _, push = jax.vjp(self._constrain, self._raw(params))
        flat, unravel = self._flat(params)
        first = flat.size - noises.shape[1]

        def half(centres: Array, noises: Array) -> Parameters:
            (raw,) = push(split(self.kind.centred(centres[:, first:], noises) - known))
            model, means = unravel(jnp.mean(centres, axis=0))
            return self._joined(params, model, means, raw)

        count = centres.shape[0] // 2
        by_half = lambda leaf: leaf.reshape(2, count, *leaf.shape[1:])
        return jax.vmap(half)(by_half(centres), by_half(noises))

    def drawn_in(self, params: Parameters) -> Parameters:
        """Locations and scales of half the size."""
        scales, unconstrain = self._scale(params)
        _, locations = self._centre_of(params)
        half = lambda leaves: tuple(0.5 * leaf for leaf in leaves)
        return self._joined(params, params.model, half(locations), unconstrain(half(scales)))

    def longest(self, direction: Parameters, params: Parameters) -> Float[Array, " blocks"]:
        # With few draws in many dimensions a step can turn S inside out.
        moved = jax.jvp(self._constrain, (self._raw(params),), (self._raw(direction),))
        scale, step = (self.kind.join(leaves)[0] for leaves in moved)
        size = self.kind.relative(scale, step)
        return jnp.stack([jnp.full_like(size, jnp.inf), 1.0 / jnp.maximum(size, 1e-30)])

    def by_block(self, factors: Float[Array, " blocks"], tree: Parameters) -> Parameters:
        location, scale = factors[Block.LOCATION], factors[Block.SCALE]
        variational = {
            name: (scale if name in self.scales else location) * leaf
            for name, leaf in tree.variational.items()
        }
        return Parameters(variational, jax.tree.map(lambda leaf: location * leaf, tree.model))

    def init(self, params: Parameters) -> AveragedMetric:
        flat, _ = self._flat(params)
        zeros = jnp.zeros((flat.size, flat.size), flat.dtype)
        return AveragedMetric(zeros, zeros)

    def prepare(
        self,
        state: AveragedMetric,
        metric: MakeOperator,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: WeightedNoise | None,
    ) -> Prepared[AveragedMetric]:
        active, embed = self.centre(params)
        here = lambda: metric().restricted(active, embed).to_dense()
        average, finite = mixed_if_any(state.metric, here, weight)
        constrained, unconstrain = self._scale(params)
        scale, split = self.kind.join(constrained)
        first = ravel_pytree(params.model)[0].size
        # The Fisher of q for locations that no distribution sees, a nat per unit squared for theta.
        spare = jnp.append(jnp.full(first, 1.0 / self.kind.num_data), self.kind.information(scale))
        matrix = average + jnp.diag(unseen(jnp.diagonal(average), spare))
        slowed, loud = matrix, state.noise
        if noise is not None:
            loud, _ = mixed(loud, noise.covariance, noise.rate)
            over = jnp.mean(jnp.diagonal(loud) / diagonal_floor(jnp.diagonal(matrix)))
            slowed = matrix + noise.part / (1.0 + (over / self.loudest) ** 4) * loud
        factor = Factor.of(slowed, damping)
        latents = factor.trailing(first)
        _, pull = jax.vjp(unconstrain, constrained)

        def whiten_scale(gradient: Parameters) -> Array:
            (pulled,) = pull(self._raw(gradient))
            return self.kind.whiten(latents, scale, self.kind.join(pulled)[0])

        def solve(*gradients: Parameters) -> Solved:
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *gradients)
            scales = jax.vmap(whiten_scale)(stacked)
            flat = jnp.stack([self._flat(gradient)[0] for gradient in gradients])
            centres = product(flat, factor.root.T)
            _, unravel = self._flat(params)
            model, locations = unravel(product(centres[:1], factor.root)[0])
            moved = split(self.kind.unwhiten(latents, scale, scales[0]))
            _, raw = jax.jvp(unconstrain, (constrained,), (moved,))
            direction = self._joined(params, model, locations, raw)
            return Solved(direction, jnp.stack([products_of(centres), products_of(scales)]))

        def square(step: Parameters) -> Float[Array, ""]:
            flat, _ = self._flat(step)
            _, motion = jax.jvp(self._constrain, (self._raw(params),), (self._raw(step),))
            of_scale = self.kind.square(matrix[first:, first:], scale, self.kind.join(motion)[0])
            return flat @ (matrix @ flat) + of_scale

        return Prepared(solve, square, AveragedMetric(average, loud), finite)

    def num_latents(self, params: Parameters) -> int:
        """Of all coordinates of the location and the model's parameters."""
        return sum(leaf.size for leaf in jax.tree.leaves(self._centre_of(params)))

    def centre(self, params: Parameters) -> tuple[tuple, Callable[[tuple], Parameters]]:
        """The model's parameters and the location, and how to put others in their place."""

        def embed(centre: tuple) -> Parameters:
            model, locations = centre
            named = dict(zip(self.locations, locations, strict=True))
            return Parameters({**params.variational, **named}, model)

        return self._centre_of(params), embed

    def _centre_of(self, tree: Parameters) -> tuple:
        # The latents last: the metric of L needs their trailing blocks.
        return tree.model, tuple(tree.variational[name] for name in self.locations)

    def _flat(self, tree: Parameters) -> tuple[Array, Callable]:
        return ravel_pytree(self._centre_of(tree))

    def _joined(
        self, like: Parameters, model: PyTree, locations: tuple[Array, ...], raw: tuple[Array, ...]
    ) -> Parameters:
        """A tree like `like` from its parts: theta, the location and the unconstrained scale."""
        found = dict(zip((*self.locations, *self.scales), (*locations, *raw), strict=True))
        return Parameters({name: found[name] for name in like.variational}, model)

    def _constrain(self, raw: tuple[Array, ...]) -> tuple[Array, ...]:
        pairs = zip(self.transforms, raw, strict=True)
        return tuple(jnp.asarray(transform(leaf)) for transform, leaf in pairs)

    def _scale(self, params: Parameters) -> tuple[tuple[Array, ...], Callable]:
        def unconstrain(scales: tuple[Array, ...]) -> tuple[Array, ...]:
            pairs = zip(self.transforms, scales, strict=True)
            return tuple(jnp.asarray(transform.inv(leaf)) for transform, leaf in pairs)

        return self._constrain(self._raw(params)), unconstrain

    def _raw(self, tree: Parameters) -> tuple[Array, ...]:
        return tuple(tree.variational[name] for name in self.scales)
