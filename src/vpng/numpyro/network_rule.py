"""The automatic rule for models and guides that are mostly networks.

With thousands of weights a metric is neither formed nor solved with in every step: the optimizer
for networks takes its place. A step has the same spectral norm relative to the weights of a layer
whatever its width: 0.32 / (sqrt(n) + sqrt(m)) for n inputs and m outputs.
"""

import statistics
from math import sqrt

import jax

from vpng.kronecker import FisherFactors, Structure
from vpng.kronecker.discovery import look_at
from vpng.numpyro.optimizer_rule import OptimizerRule
from vpng.numpyro.problem import Call, TracedProblem
from vpng.optimizers import NETWORK_METRIC, in_averaged_eigenbasis, slowly_decaying
from vpng.problem import Parameters
from vpng.transform.iterate_averaging import averaged

STEP_NORM = 0.32
BATCH_SIZE = 256
"""Of a usual minibatch; it only bounds Adam's denominator from below."""


def network_rule(problem: TracedProblem, structure: Structure) -> OptimizerRule:
    """The rule for the layers of `structure`."""
    widths = [sqrt(layer.size[0]) + sqrt(layer.size[1]) for layer in structure.layers]
    optimizer = in_averaged_eigenbasis(
        problem,
        structure,
        slowly_decaying(STEP_NORM / statistics.median(widths)),
        batch_size=BATCH_SIZE,
        source=FisherFactors(NETWORK_METRIC),
    )
    return OptimizerRule(optimizer, lambda iterate: averaged(iterate.optimizer))


def layers_of(problem: TracedProblem, parameters: Parameters, call: Call) -> Structure | None:
    """The layers, if they hold most of the parameters."""
    found: list[Structure] = []

    def look(parameters: Parameters) -> None:
        operator = NETWORK_METRIC.operator(problem, parameters, call, jax.random.key(0))
        found.append(look_at(operator).structure)

    jax.eval_shape(look, parameters)
    (structure,) = found
    size = sum(leaf.size for leaf in jax.tree.leaves(parameters))
    held = sum(layer.size[0] * layer.size[1] for layer in structure.layers)
    return structure if 2 * held > size else None
