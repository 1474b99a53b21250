"""The numerical guard: what is not finite never enters a run, and is called by its name.

A run goes ahead without looking, in compiled chunks, and looks once at the end of each: at every
loss, at what the parts of the optimizer found, and at the whole state. Only a chunk in which
something was not finite is done again, from where it began, with steps that are examined one by
one; and from then on every step is. A healthy run thus pays for one look a chunk. What explodes
and stays finite is found by `vpng.run.explosion`, and makes a chunk be done again in the same way.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from vpng.checks import of_kind, positive_integer
from vpng.curvature.base import SolveInfo
from vpng.not_finite import NotFinite, joined
from vpng.numerics.trees import all_finite, is_floating, path_name
from vpng.objective import ELBO
from vpng.problem import AbstractProblem, Parameters
from vpng.run.explosion import Explosions

NUM_NAMED = 3


class Guard(eqx.Module):
    """Steps that are not finite are dropped, explosions are taken back, a hopeless run is stopped.

    Attributes:
        max_rejections: steps dropped in a row after which a run stops with its last good state.
        explosions: when a finite loss counts as an explosion; None for never.
    """

    max_rejections: int = eqx.field(default=30, static=True)
    explosions: Explosions | None = Explosions()

    def __check_init__(self) -> None:
        positive_integer("max_rejections", self.max_rejections)
        of_kind("explosions", self.explosions, Explosions | None, "Explosions(), or None")


class Trouble(NamedTuple):
    """What was not finite in a step, in the order in which it was computed.

    Attributes:
        loss: draws of the latents, log-likelihoods by site, the KL and the loss.
        gradient: by parameter.
        metric: Fisher statistics, factors and solves, as the optimizer's parts found them.
        update: by parameter.
        optimizer: moments, averages and the like, by their place in the optimizer's state.
        explosion: whether the loss was finite and had exploded.
    """

    loss: NotFinite
    gradient: NotFinite
    metric: NotFinite
    update: NotFinite
    optimizer: NotFinite
    explosion: NotFinite

    def rejects(self, loss: Float[Array, ""]) -> Bool[Array, ""]:
        """Whether the step is dropped; the parts of the loss only explain its own value."""
        others = [findings.any for findings in self[1:]]
        return jnp.any(jnp.stack([~jnp.isfinite(loss), *others]))

    def words(self, index: tuple[int, ...] = ()) -> str:
        """The parts of the first kind that was not finite: the others follow from it."""
        for findings in self:
            if named := findings.named(index):
                rest = len(named) - NUM_NAMED
                return ", ".join(named[:NUM_NAMED]) + (f" and {rest} more" if rest > 0 else "")
        return ""


def trouble_in_loss(
    rng_key: PRNGKeyArray,
    problem: AbstractProblem,
    objective: ELBO,
    parameters: Parameters,
    batch: PyTree,
    loss: Array,
) -> NotFinite:
    """Which draw, which site or which divergence is not finite, for the noise of the step."""
    keys = jax.random.split(rng_key, objective.num_particles)

    def one(key: PRNGKeyArray) -> NotFinite:
        latent, divergence = problem.latent_and_kl(parameters, problem.noise(key, batch), batch)
        sites = problem.likelihood_sites(parameters.model, latent, batch)
        return joined(
            [
                NotFinite.in_tree("draw of the latents", latent),
                NotFinite.of(
                    [f"log-likelihood of {site.name}".removesuffix(" of ") for site in sites],
                    [~all_finite(site.distribution.log_prob(site.value)) for site in sites],
                ),
                NotFinite.of(["KL divergence"], [~all_finite(divergence)]),
            ]
        )

    parts = jax.eval_shape(one, keys[0]).parts
    flags = jax.lax.cond(
        jnp.isfinite(loss),
        lambda: jnp.zeros((len(parts),), bool),
        lambda: jnp.any(jax.vmap(one)(keys).flags, axis=0),
    )
    return joined([NotFinite(flags, parts), NotFinite.of(["loss"], [~jnp.isfinite(loss)])])


def trouble_in_optimizer(new: PyTree, old: PyTree) -> NotFinite:
    """The arrays of an optimizer's state that were finite before the step and are not now.

    Diagnostics of a solve do not count, nor does what begins as infinite, such as a best loss.
    """
    pairs = [
        (path_name(path), now, before)
        for (path, now), before in zip(_state_leaves(new), _plain_leaves(old), strict=True)
        if is_floating(now)
    ]
    return NotFinite.of(
        [f"optimizer{'' if name.startswith('[') else '.'}{name}" for name, _, _ in pairs],
        [~all_finite(now) & all_finite(before) for _, now, before in pairs],
    )


def finite_throughout(
    losses: Float[Array, " k"],
    found: Bool[Array, " k"],
    params: Parameters,
    optimizer: PyTree,
    before: PyTree,
) -> Bool[Array, ""]:
    """Whether everything in a chunk of steps was finite, in a single look at its end.

    What is not finite stays so in parameters, moments and averages.

    Args:
        losses: of the steps.
        found: whether the optimizer found something at them.
        params: after them.
        optimizer: its state after them.
        before: its state before them.
    """
    parameters = NotFinite.in_tree("parameters", params).any
    state = trouble_in_optimizer(optimizer, before).any
    return jnp.all(jnp.isfinite(losses)) & ~(jnp.any(found) | parameters | state)


def after_rejection(optimizer_state: PyTree) -> PyTree:
    """The optimizer's state for the attempt after a step that was dropped: more damping.

    Parts of the state that have a method `after_rejection` say what changes; the rest stays.
    """
    return jax.tree.map(
        lambda node: node.after_rejection() if _reacts(node) else node,
        optimizer_state,
        is_leaf=_reacts,
    )


def _reacts(node: Any) -> bool:
    return hasattr(node, "after_rejection")


def _is_diagnostic(node: Any) -> bool:
    return isinstance(node, SolveInfo | NotFinite)


def _state_leaves(state: PyTree) -> list[tuple[tuple[Any, ...], Array]]:
    leaves = jax.tree_util.tree_leaves_with_path(state, is_leaf=_is_diagnostic)
    return [(path, leaf) for path, leaf in leaves if not _is_diagnostic(leaf)]


def _plain_leaves(state: PyTree) -> list[Array]:
    return [leaf for _, leaf in _state_leaves(state)]
