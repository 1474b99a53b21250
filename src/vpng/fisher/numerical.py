"""The Fisher information of families of one dimension without a closed form.

For parameters phi_1, ..., phi_k of one element, I = E[s s^T] with the scores s of log p(x | phi),
of which forward derivatives give one parameter after the other for all elements at once. The
expectation is a sum over nodes: quantiles at points u of the trapezoid rule in log(u / (1 - u)),
which converges geometrically; the counts themselves, or cells of them where they are many; those of
the components of a mixture. With I = L L^T the rows are L^T phi.

Families inflated or hurdled at zero are exact where their base is: with p_0 and s_0 the base's
probability and score of zero and J its information, what is left of it beyond zero is
J - p_0 s_0 s_0^T.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

NUM_NODES = 48
"""Of the sum that stands for an expectation."""

FARTHEST = 16.0
"""In log(u / (1 - u)): further out single precision cannot tell u from 1."""

Member = Any
"""A distribution whose parameters are its attributes."""

Nodes = tuple[Float[Array, "J ..."], Float[Array, "J ..."]]
Rows = Callable[[Any, Any], Array]


def quantile_of(member: Member) -> Callable[[Array], Array] | None:
    """The inverse of the distribution function, where there is one."""
    family = type(member)
    if family is dist.Weibull:
        return lambda u: member.scale * (-jnp.log1p(-u)) ** (1.0 / member.concentration)
    if family is dist.Kumaraswamy:
        root = lambda u: -jnp.expm1(jnp.log1p(-u) / member.concentration0)
        return lambda u: root(u) ** (1.0 / member.concentration1)
    return member.icdf if family.icdf is not dist.Distribution.icdf else None


def nodes_of(member: Member) -> Nodes | None:
    """Values and weights with E f(x) = sum_j w_j f(x_j); None where none are known."""
    family = type(member)
    if member.event_shape:
        return None
    if family is dist.MixtureSameFamily:
        inside = nodes_of(member.component_distribution)
        return None if inside is None else _joined(*inside, member.mixing_distribution.probs)
    if family is dist.MixtureGeneral:
        parts = [nodes_of(each) for each in member.component_distributions]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        values, weights = (jnp.stack(each, axis=-1) for each in zip(*known, strict=True))
        return _joined(values, weights, member.mixing_distribution.probs)
    if member.is_discrete:
        return _counts(member)
    quantile = quantile_of(member)
    if quantile is None:
        return None
    places = jnp.linspace(-FARTHEST, FARTHEST, NUM_NODES)
    below, above = jax.nn.sigmoid(places), jax.nn.sigmoid(-places)
    shape = (NUM_NODES,) + (1,) * len(member.batch_shape)
    weights = below * above / jnp.sum(below * above)
    points = jnp.broadcast_to(below.reshape(shape), (NUM_NODES, *member.batch_shape))
    try:
        values = quantile(points)
    except ImportError:
        # NumPyro takes some quantiles from TensorFlow Probability, which need not be there.
        return None
    return values, jnp.broadcast_to(weights.reshape(shape), values.shape)


def _joined(values: Array, weights: Array, shares: Array) -> Nodes:
    """Those of all components, which stand along the last axis."""
    first = lambda array: jnp.moveaxis(array, -1, 0).reshape(-1, *array.shape[1:-1])
    return first(values), first(weights * shares)


def _counts(distribution: Member) -> Nodes | None:
    """Cells of counts that cover all that is likely, of one count each where they are few."""
    if type(distribution) is dist.BetaNegativeBinomial:
        # Its moments need not be finite.
        return None
    try:
        mean, variance = distribution.mean, distribution.variance
    except NotImplementedError:
        return None
    deviation = jnp.sqrt(variance)
    lower = jnp.maximum(jnp.floor(mean - 10.0 * deviation), 0.0)
    upper = mean + 14.0 * deviation + 8.0
    upper = jnp.minimum(upper, getattr(distribution.support, "upper_bound", jnp.inf))
    cells = jnp.arange(2 * NUM_NODES + 1).reshape(-1, *(1,) * len(distribution.batch_shape))
    # Cells at least one wide, and wider towards the tail.
    width = jnp.maximum((upper - lower) / (2 * NUM_NODES), 1.0)
    edges = jnp.round(lower + width * cells)
    values = jnp.floor(0.5 * (edges[:-1] + edges[1:] - 1.0))
    values = jnp.broadcast_to(values, (values.shape[0], *distribution.batch_shape))
    inside = jax.lax.stop_gradient(distribution.support(values))
    near = jnp.where(inside, values, lower)
    mass = jnp.where(inside, jnp.exp(distribution.log_prob(near)), 0.0) * (edges[1:] - edges[:-1])
    return near, mass / jnp.sum(mass, axis=0)


def leaves_of(distribution: Member) -> tuple[list[Array], list[tuple[int, ...]], Callable]:
    """The parameters of a family, their coordinates for one element, and the way back.

    A parameter of one more dimension than the batch, such as the shares of a mixture, has as many
    coordinates as that is long.
    """
    leaves, structure = jax.tree.flatten(distribution)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    moving = [
        index for index, leaf in enumerate(arrays) if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    dims = len(distribution.batch_shape)
    parts = [
        (place, *rest)
        for place, index in enumerate(moving)
        for rest in np.ndindex(arrays[index].shape[dims:])
    ]

    def rebuilt(chosen: list[Array]) -> Any:
        given = dict(zip(moving, chosen, strict=True))
        return jax.tree.unflatten(structure, [given.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [arrays[index] for index in moving], parts, rebuilt


def derivatives_in(distribution: Member, function: Callable[[Any], Array]) -> Float[Array, "k ..."]:
    """Those of a function of a distribution, element by element, in every coordinate."""
    leaves, parts, rebuilt = leaves_of(distribution)

    def along(part: tuple[int, ...]) -> Array:
        place, *rest = part
        ones = [
            jnp.zeros_like(leaf).at[(..., *rest)].set(1.0)
            if index == place
            else jnp.zeros_like(leaf)
            for index, leaf in enumerate(leaves)
        ]
        return jax.jvp(lambda leaves: function(rebuilt(leaves)), (leaves,), (ones,))[1]

    return jnp.stack([along(part) for part in parts])


def coordinates_of(distribution: Member) -> Float[Array, "k ..."]:
    """The parameters, each of the shape of the batch."""
    leaves, parts, _ = leaves_of(distribution)
    shape = distribution.batch_shape
    return jnp.stack([jnp.broadcast_to(leaves[p][(..., *rest)], shape) for p, *rest in parts])


def root_rows(information: Float[Array, "k k ..."], coordinates: Float[Array, "k ..."]) -> Array:
    """L^T phi with I = L L^T, element by element; a direction without information has no row."""
    size = len(coordinates)
    tiny = jnp.finfo(coordinates.dtype).tiny
    lower: list[list[Array]] = []
    for i in range(size):
        row: list[Array] = []
        for j in range(i + 1):
            left = (
                information[i, j] - sum(row[m] * lower[j][m] for m in range(j))
                if j < i
                else (information[i, i] - sum(entry**2 for entry in row))
            )
            if j < i:
                root = lower[j][j]
                row.append(jnp.where(root > 0, left / jnp.where(root > 0, root, 1.0), 0.0))
            else:
                # Rounding leaves something of what is nothing.
                seen = left > jnp.maximum(1e-6 * information[i, i], tiny)
                row.append(jnp.sqrt(jnp.where(seen, left, 0.0)))
        lower.append(row)
    rows = [sum(lower[i][r] * coordinates[i] for i in range(r, size)) for r in range(size)]
    return jnp.stack([jnp.asarray(row) for row in rows], axis=-1)


def by_quadrature(distribution: Member) -> Rows | None:
    """The rows of a family whose nodes are known."""
    if distribution.event_shape or jax.eval_shape(lambda: nodes_of(distribution)) is None:
        return None

    def rule(at: Any, of: Any) -> Array:
        found = nodes_of(at)
        assert found is not None
        values, weights = jax.lax.stop_gradient(found)
        scores = derivatives_in(at, lambda moved: moved.log_prob(values))
        # A density that is zero says nothing, whatever its derivative.
        scores = jnp.where(jnp.isfinite(scores) & (weights > 0), scores, 0.0)
        information = jnp.einsum("j...,aj...,bj...->ab...", weights, scores, scores)
        return root_rows(jax.lax.stop_gradient(information), coordinates_of(of))

    return rule


def at_zero(distribution: Member, base_rule: Rows) -> Rows:
    """The rows of a family that is inflated or hurdled at zero, with those of its base."""
    hurdle = isinstance(distribution, dist.HurdleProbs)

    def rule(at: Any, of: Any) -> Array:
        base, gate = at.base_dist, at.gate
        shape = at.batch_shape
        parts = derivatives_in(base, lambda moved: base_rule(base, moved))
        inside = jnp.einsum("a...r,b...r->ab...", parts, parts)
        if base.is_discrete:
            log_zero = lambda moved: moved.log_prob(jnp.zeros(moved.batch_shape, int))
            score, zero = derivatives_in(base, log_zero), jnp.exp(log_zero(base))
        else:
            score, zero = jnp.zeros(parts.shape[:-1]), jnp.zeros(base.batch_shape)
        outer = score[:, None] * score[None]
        beyond = inside - zero * outer
        positive = 1.0 - zero
        if hurdle:
            of_base = (1.0 - gate) * (beyond / positive - (zero / positive) ** 2 * outer)
            of_gate, across = 1.0 / (gate * (1.0 - gate)), jnp.zeros_like(score)
        else:
            # At zero the two ways of getting there are one.
            total = gate + (1.0 - gate) * zero
            share = (1.0 - gate) * zero / total
            of_base = (1.0 - gate) * beyond + total * share**2 * outer
            of_gate = positive**2 / total + positive / (1.0 - gate)
            across = positive * share * score + zero * score
        full = lambda array: jnp.broadcast_to(array, shape)
        size = len(score)
        rows = [[full(of_gate), *(full(across[a]) for a in range(size))]]
        rows += [
            [full(across[a]), *(full(of_base[a, b]) for b in range(size))] for a in range(size)
        ]
        information = jnp.stack([jnp.stack(row) for row in rows])
        coordinates = jnp.stack(
            [full(of.gate), *(full(each) for each in coordinates_of(of.base_dist))]
        )
        return root_rows(jax.lax.stop_gradient(information), coordinates)

    return rule


def by_second_derivatives(distribution: Member, value: Array) -> Array:
    """Rows whose square is the size of the second derivatives of log p at the value itself."""
    here = jax.lax.stop_gradient(distribution)
    slopes = lambda moved: derivatives_in(moved, lambda each: each.log_prob(value))
    bent = derivatives_in(here, slopes)
    matrices = jnp.moveaxis(bent, (0, 1), (-2, -1))
    values, vectors = jnp.linalg.eigh(0.5 * (matrices + jnp.swapaxes(matrices, -1, -2)))
    root = jnp.sqrt(jnp.abs(values))[..., None, :] * vectors
    moving = jnp.moveaxis(coordinates_of(distribution), 0, -1)
    return jnp.einsum("...ar,...a->...r", jax.lax.stop_gradient(root), moving)
