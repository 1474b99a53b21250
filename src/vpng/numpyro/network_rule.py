"""The automatic rule for models and guides that are mostly networks.

With thousands of weights a metric is neither formed nor solved with in every step. Nesterov Adam
runs in the eigenbasis of the Fisher's Kronecker factors instead, where it is nearly diagonal, and
the iterates are averaged, so that the answer settles. A step has the same spectral norm relative to
the weights of a layer whatever its width: 0.32 / (sqrt(n) + sqrt(m)) for n inputs and m outputs.
"""

import statistics
from math import sqrt
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from vpng.fisher import Predictive, Probed
from vpng.kronecker import FisherFactors, Structure, in_eigenbasis
from vpng.kronecker.discover import look_at
from vpng.numpyro.problem import Call, TracedProblem
from vpng.numpyro.rules import AbstractRule, Here, Step
from vpng.optimizers import eigenbasis_adam
from vpng.problem import Parameters
from vpng.transform.iterate_average import averaged, iterate_average

METRIC = Predictive(Probed(1), num_particles=1)
STEP_NORM = 0.32
DECAY_STEPS = 400
BATCH_SIZE = 256
"""Of a usual minibatch; it only bounds Adam's denominator from below."""


class NetworkState(NamedTuple):
    """What the rule carries from step to step.

    Attributes:
        accepted: the average of the iterates; what to read out.
        current: the last iterate.
        optimizer: the state of the transformation.
    """

    accepted: Parameters
    current: Parameters
    optimizer: PyTree


class NetworkRule(AbstractRule):
    """The rule for one problem.

    Attributes:
        optimizer: makes a step of a gradient.
    """

    keeps_good_points: ClassVar[bool] = True

    optimizer: optax.GradientTransformationExtraArgs = eqx.field(static=True)

    @classmethod
    def of(cls, problem: TracedProblem, structure: Structure) -> "NetworkRule":
        """For the layers of `structure`."""
        widths = [sqrt(layer.size[0]) + sqrt(layer.size[1]) for layer in structure.layers]
        rate = STEP_NORM / statistics.median(widths)
        direction = in_eigenbasis(
            problem, structure, eigenbasis_adam(BATCH_SIZE), source=FisherFactors(METRIC)
        )
        schedule = lambda step: rate / jnp.sqrt(1.0 + step / DECAY_STEPS)
        return cls(iterate_average(optax.chain(direction, optax.scale_by_learning_rate(schedule))))

    def init(self, parameters: Parameters) -> NetworkState:
        return NetworkState(parameters, parameters, self.optimizer.init(parameters))

    def step(self, state: NetworkState, here: Here) -> Step:
        losses = here.drawn(halves=False)
        loss, gradient = losses.mean(state.current)
        updates, optimizer = self.optimizer.update(
            gradient, state.optimizer, state.current, batch=here.call, rng_key=here.metric_key
        )
        current = optax.apply_updates(state.current, updates)
        new = NetworkState(averaged(optimizer), current, optimizer)
        floats = [leaf for leaf in jax.tree.leaves(new) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        finite = jnp.isfinite(loss + sum(jnp.sum(leaf) for leaf in floats))
        kept = jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, state)
        return Step(kept, loss, finite, losses)

    def point(self, state: NetworkState) -> Parameters:
        return state.current

    def answer(self, state: NetworkState) -> Parameters:
        return state.accepted


def layers_of(problem: TracedProblem, parameters: Parameters, call: Call) -> Structure | None:
    """The layers, if they hold most of the parameters."""
    found: list[Structure] = []

    def look(parameters: Parameters) -> None:
        operator = METRIC.operator(problem, parameters, call, jax.random.key(0))
        found.append(look_at(operator, dense_limit=500).structure)

    jax.eval_shape(look, parameters)
    (structure,) = found
    size = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    held = sum(layer.size[0] * layer.size[1] for layer in structure.layers)
    return structure if 2 * held > size else None
