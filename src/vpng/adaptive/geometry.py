"""What the adaptive rule asks of a representation of the metric."""

from abc import abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from vpng.curvature.base import MakeOperator
from vpng.problem import Parameters
from vpng.products import product

State = TypeVar("State")


class Block(IntEnum):
    """Blocks of parameters that the metric does not couple, by their place among the blocks.

    The first has the location and the model's parameters, or simply everything.
    """

    LOCATION = 0
    SCALE = 1


class Evaluation(NamedTuple):
    """The loss and its gradient at one point, with one draw of random numbers, per datum.

    Attributes:
        losses: of every particle, in two halves one after the other.
        gradients: of the two halves, along the first axis of every leaf.
        scores: mean scores of the approximation over the same halves, or None.
        draws: gradients and scores of every particle in the coordinates of the metric, if known.
        written: what the model wrote besides, such as mutable state; None for nothing.
    """

    losses: Float[Array, " K"]
    gradients: Parameters
    scores: Parameters | None
    draws: tuple[Float[Array, "K n"], Float[Array, "K n"]] | None = None
    written: PyTree = None


class Particles(NamedTuple):
    """The loss of every particle, and its derivatives in some of the parameters, per datum.

    Attributes:
        losses: in two halves one after the other.
        gradients: in those parameters, particles along the first axis of every leaf.
        scores: d log q in the same parameters at the particle's own latents, which are held.
    """

    losses: Float[Array, " K"]
    gradients: PyTree
    scores: PyTree


class WeightedNoise(NamedTuple):
    """How much the particles of one step disagree about the gradient.

    Attributes:
        covariance: of the mean gradient, in the units of the metric.
        rate: weight of it in the average over steps, from 0 to 1.
        part: of that average to be added to the metric.
    """

    covariance: Float[Array, "n n"]
    rate: Float[Array, ""]
    part: Float[Array, ""]


class Objective(Protocol):
    """A loss with fixed random numbers, per datum, at any point."""

    def at(self, parameters: Parameters) -> Float[Array, " K"]:
        """The losses of all particles."""
        ...

    def halves(self, parameters: Parameters) -> Evaluation:
        """Losses, and gradients by halves."""
        ...

    def by_particle(
        self, active: PyTree, embed: Callable[[PyTree], Parameters]
    ) -> Particles | None:
        """Losses and derivatives in `active`, for a loss that is log q - log p; else None.

        Args:
            active: values of some of the parameters.
            embed: puts values of them among the fixed ones.
        """
        ...


class Solved(NamedTuple):
    """What the inverse of the metric makes of k gradients.

    Attributes:
        direction: (F + damping)^-1 applied to the first.
        products: g_i . (F + damping)^-1 g_j of all, for every block.
        state: what is carried to the next step, where solving changes it; else None.
    """

    direction: Parameters
    products: Float[Array, "blocks k k"]
    state: PyTree | None = None


class Prepared(NamedTuple, Generic[State]):
    """The metric at one point, ready to be used.

    Attributes:
        solve: gradients g_1, ..., g_k -> what (F + damping)^-1 makes of them.
        square: d -> d.F d, without the damping.
        state: what is carried to the next step, unless solving says otherwise.
        finite: whether the metric could be evaluated.
    """

    solve: Callable[..., Solved]
    square: Callable[[Parameters], Float[Array, ""]]
    state: State
    finite: Bool[Array, ""]


class AbstractGeometry(eqx.Module, Generic[State]):
    """A representation of the metric that may average it over steps.

    Attributes:
        solves_cheaply: whether further solves with a prepared metric cost little.
        num_blocks: of parameters that the metric does not couple.
        num_draws: of the latents that the metric needs in one step.
        remembers: whether a gradient of an earlier minibatch can be solved with the metric of this
            one.
        initial_share: of the first direction that is stepped.
        tolerated_noise: nats that noise may cost at first; it falls as 1 / (1 + (t / 50)^2). More
            where the gradient has little noise for its signal.
    """

    solves_cheaply: eqx.AbstractClassVar[bool]
    num_blocks: eqx.AbstractClassVar[int]
    num_draws: eqx.AbstractClassVar[int]
    initial_share: eqx.AbstractClassVar[float]
    tolerated_noise: eqx.AbstractClassVar[float]

    @property
    def remembers(self) -> bool:
        return True

    def evaluate(
        self, objective: Objective, params: Parameters, state: State | None = None
    ) -> Evaluation:
        """The loss and its gradients at a point, with as little noise as the geometry allows.

        Args:
            objective: the loss with this step's random numbers.
            params: the point.
            state: what is carried, of which a control variate may be made.
        """
        return objective.halves(params)

    def drawn_in(self, params: Parameters) -> Parameters:
        """A start nearer to zero, for one whose loss is not finite."""
        halved = jax.tree.map(lambda leaf: 0.5 * leaf, params.variational)
        return params._replace(variational=halved)

    def longest(self, direction: Parameters, params: Parameters) -> Float[Array, " blocks"]:
        """The largest multiple of the direction that every block may be moved by."""
        return jnp.full(self.num_blocks, jnp.inf)

    def by_block(self, factors: Float[Array, " blocks"], tree: Parameters) -> Parameters:
        """The tree with every block multiplied by its own factor."""
        return jax.tree.map(lambda leaf: factors[Block.LOCATION] * leaf, tree)

    @abstractmethod
    def init(self, params: Parameters) -> State:
        """What is carried from one step to the next."""

    @abstractmethod
    def prepare(
        self,
        state: State,
        metric: MakeOperator,
        params: Parameters,
        damping: Float[Array, ""],
        weight: Float[Array, ""],
        noise: WeightedNoise | None,
    ) -> Prepared[State]:
        """The metric at `params`.

        Args:
            state: from `init` or the step before.
            metric: makes the operator at `params`.
            params: the point.
            damping: relative to the metric's diagonal.
            weight: of this metric in the average over steps, from 0 to 1.
            noise: of this step's gradient; None if `evaluate` gives no draws.
        """


def products_of(whitened: Float[Array, "k ..."]) -> Float[Array, "k k"]:
    """Inner products of arrays along the first axis."""
    flat = whitened.reshape(whitened.shape[0], -1)
    return product(flat, flat.T)


def multiple_within_one(direction: Parameters, names: frozenset[str]) -> Float[Array, " 1"]:
    """The largest multiple of a direction that moves none of the parameters `names` beyond one.

    With minibatches the next batch may not see whether a longer step was good.
    """
    named = {**direction.variational, **direction.model}
    moved = [jnp.abs(named[name]).ravel() for name in named if name in names]
    return 1.0 / jnp.max(jnp.concatenate([jnp.full(1, 1e-30), *moved]), keepdims=True)


def unseen(diagonal: Float[Array, " P"], instead: Float[Array, " P"] | float) -> Float[Array, " P"]:
    """What is added to the diagonal: `instead` where the metric sees nothing of a parameter.

    No distribution that can be sampled depends on such a one, say the location of a latent with a
    flat prior in a `numpyro.factor`.
    """
    least = jnp.finfo(diagonal.dtype).eps ** 2 * jnp.max(diagonal, initial=0.0)
    return jnp.where(diagonal <= least, instead, 0.0).astype(diagonal.dtype)


def diagonal_floor(diagonal: Float[Array, " P"]) -> Float[Array, " P"]:
    """The diagonal, bounded below: parameters that the metric does not see get some of it."""
    tiny = jnp.finfo(diagonal.dtype).tiny
    return jnp.maximum(diagonal, 1e-8 * jnp.max(diagonal) + 1e3 * tiny)
