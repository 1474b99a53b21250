"""The rule around an optax transformation, the user's own or the one for networks."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from vpng.numerics.optax_types import transformation
from vpng.numerics.trees import where
from vpng.numpyro.rules import AbstractRule, Step, StepInputs, by_name, split_by_name
from vpng.numpyro_names import NumPyroOptim
from vpng.problem import Parameters
from vpng.run.explosion import Explosions, ExplosionState, went_back
from vpng.training.guard import after_rejection, trouble_in_optimizer


class Iterate(NamedTuple):
    """Parameters, and the state of the transformation there."""

    parameters: Parameters
    optimizer: PyTree


class OptimizerState(NamedTuple):
    """What the rule carries from step to step.

    Attributes:
        accepted: what to read out.
        current: where the last step led.
        optimizer: the state of the transformation.
        explosions: the losses seen so far, and a good point.
    """

    accepted: Parameters
    current: Parameters
    optimizer: PyTree
    explosions: ExplosionState[Iterate]


def last_iterate(iterate: Iterate) -> Parameters:
    """The parameters themselves."""
    return iterate.parameters


class OptimizerRule(AbstractRule):
    """Gradients turned into steps by a transformation.

    It gets `value`, the loss as NumPyro reports it, `batch`, `rng_key` and `share`.

    Attributes:
        optimizer: the transformation.
        readout: which parameters of an iterate are the answer.
        explosions: when a finite loss counts as an explosion.
    """

    keeps_good_points: ClassVar[bool] = False

    optimizer: optax.GradientTransformationExtraArgs = eqx.field(static=True)
    readout: Callable[[Iterate], Parameters] = eqx.field(default=last_iterate, static=True)
    explosions: Explosions = Explosions()

    def init(self, parameters: Parameters) -> OptimizerState:
        first = Iterate(parameters, self.optimizer.init(parameters))
        return self._state(first, self.explosions.init(first))

    def step(self, state: OptimizerState, inputs: StepInputs) -> Step:
        old, share = Iterate(state.current, state.optimizer), state.explosions.share
        losses, num_data = inputs.drawn(halves=False), inputs.problem.num_data
        loss, gradient, written = losses.mean_and_written(old.parameters)
        updates, optimizer = self.optimizer.update(
            gradient,
            old.optimizer,
            old.parameters,
            value=loss * num_data,
            batch=inputs.call,
            rng_key=inputs.metric_key,
            share=share,
        )
        part = jax.tree.map(lambda update: (share * update).astype(update.dtype), updates)
        moved: Any = optax.apply_updates(old.parameters, part)
        new = Iterate(moved, optimizer)
        loss_at = lambda good: jnp.mean(losses.at(good.parameters))
        seen, exploded = self.explosions.look(state.explosions, loss, loss_at, num_data)
        seen = self.explosions.kept(seen, old, ~exploded)
        seen = went_back(exploded, seen, after_rejection(seen.good))
        usable = jnp.isfinite(loss) & ~trouble_in_optimizer(new, old).any
        # An exploded step may have no finite update, and the good point does not need one.
        stepped = self._state(where(exploded, seen.good, new), seen)
        dropped = state._replace(optimizer=after_rejection(old.optimizer))
        kept = where(usable | exploded, stepped, dropped)
        return Step(kept, loss, usable & ~exploded, written, exploded)

    def point(self, state: OptimizerState) -> Parameters:
        return state.current

    def _state(self, iterate: Iterate, seen: ExplosionState[Iterate]) -> OptimizerState:
        return OptimizerState(self.readout(iterate), *iterate, seen)


def by_site_name(
    optimizer: optax.GradientTransformation, model_names: frozenset[str]
) -> optax.GradientTransformationExtraArgs:
    """The transformation, which sees one dictionary by site name, as NumPyro's do.

    Args:
        optimizer: of such dictionaries; it may choose by name.
        model_names: parameters of the model alone.
    """
    inner = optax.with_extra_args_support(optimizer)

    def update(
        updates: Parameters, state: PyTree, params: Parameters | None = None, **extra_args: Any
    ) -> tuple[Parameters, PyTree]:
        known = None if params is None else by_name(params)
        found: Any
        found, state = inner.update(by_name(updates), state, known, **extra_args)
        return split_by_name(found, model_names), state

    return transformation(lambda params: inner.init(by_name(params)), update)


def numpyro_as_optax(optimizer: NumPyroOptim) -> optax.GradientTransformationExtraArgs:
    """An optimizer of NumPyro's, which keeps its parameters itself, as a transformation."""

    def update(
        updates: PyTree,
        state: PyTree,
        params: PyTree = None,
        *,
        value: Float[Array, ""],
        **extra_args: Any,
    ) -> tuple[PyTree, PyTree]:
        new = optimizer.update(updates, state, value=value)
        before, after = optimizer.get_params(state), optimizer.get_params(new)
        return jax.tree.map(jnp.subtract, after, before), new

    return transformation(optimizer.init, update)
