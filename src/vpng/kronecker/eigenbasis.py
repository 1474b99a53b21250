"""Any optax rule run in the eigenbasis of the Kronecker factors.

Factors -> basis -> rule in that basis. A layer's block of the metric is A (x) G; with A = Q L Q^T
the coordinates Q^T V of its parameters V have uncorrelated inputs, and a rule that scales every
coordinate for itself (Adam, RMSProp) then sees a metric that is nearly diagonal.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from vpng.checks import positive_integer
from vpng.errors import InputError, expected
from vpng.kronecker.basis import Basis, back, bases_of_data, into
from vpng.kronecker.factor_source import AbstractSides, AbstractSource, FisherFactors, Inputs
from vpng.kronecker.factor_statistics import Factors
from vpng.kronecker.inverses import eigendecompositions
from vpng.kronecker.structure import Layer, Structure
from vpng.kronecker.turned_state import turned_state
from vpng.not_finite import NotFinite, joined
from vpng.numerics.moving_average import mixed
from vpng.numerics.optax_types import transformation
from vpng.numerics.trees import all_finite
from vpng.problem import AbstractProblem, Parameters

BASES = "eigenvectors of the Fisher factors"


class EigenbasisState(NamedTuple):
    """The state of `in_eigenbasis`.

    Attributes:
        step: updates done.
        factors: moving averages of the factors that move, by layer: A and perhaps G.
        bases: the bases in use, by layer.
        next_turn: the step of the next turn.
        rule: the rule's state, in the coordinates of the bases.
        findings: the factors of this step that were not finite, and whether the bases were.
    """

    step: Int[Array, ""]
    factors: dict[str, Basis]
    bases: dict[str, Basis]
    next_turn: Int[Array, ""]
    rule: PyTree
    findings: NotFinite


def in_eigenbasis(
    problem: AbstractProblem,
    structure: Structure,
    rule: optax.GradientTransformation,
    *,
    source: AbstractSource = FisherFactors(),
    sides: AbstractSides = Inputs(),
    calibration: PyTree | None = None,
    parameters: Parameters | None = None,
    statistics_period: int = 20,
    patience: float = 0.2,
    decay: float = 0.9,
    max_rank: int = 150,
) -> optax.GradientTransformationExtraArgs:
    """Run `rule` in the eigenbasis of the metric's Kronecker factors.

    `update` needs `batch` and `rng_key` by keyword. Parameters in no layer go to the rule as they
    are. A layer fed by the data alone has inputs that never change: with `calibration` its basis is
    made once from those data, and only its leading directions are kept; what the data hardly excite
    is not updated.

    Args:
        problem: the problem whose loss is minimised.
        structure: the layers, from `discover`.
        rule: any optax rule; the moments of Adam, RMSProp and momentum turn with the basis.
        source: where the factors come from; the predictive Fisher by default.
        sides: which factors give a basis.
        calibration: data for the layers that the data feed.
        parameters: needed with `calibration`; any of the problem's.
        statistics_period: steps between two looks at the factors.
        patience: a turn is due after this share of the steps done, at the least one period.
        decay: of the moving averages of the factors.
        max_rank: most directions kept of one factor.
    """
    positive_integer("statistics_period", statistics_period)
    positive_integer("max_rank", max_rank)
    if not 0.0 <= decay < 1.0:
        raise expected("decay", "a number in [0, 1)", decay)
    fixed = _fixed_bases(problem, structure, calibration, parameters, max_rank)
    bases = _MovingBases(
        problem,
        structure,
        source,
        sides,
        tuple(layer for layer in structure.layers if layer.weight not in fixed),
        statistics_period,
        patience,
        decay,
        max_rank,
    )

    def init(params: Parameters) -> EigenbasisState:
        structure.check_covers(params)
        factors, moving = bases.init(jnp.result_type(*jax.tree.leaves(params)))
        begun = {**moving, **fixed}
        none = jnp.zeros((), jnp.int32)
        findings = NotFinite.none([*_findings(factors).parts, BASES])
        coordinates = into(structure, begun, params)
        return EigenbasisState(none, factors, begun, none, rule.init(coordinates), findings)

    def update(
        updates: Parameters,
        state: EigenbasisState,
        params: Parameters | None = None,
        *,
        batch: PyTree,
        rng_key: PRNGKeyArray,
        **extra_args: Any,
    ) -> tuple[Parameters, EigenbasisState]:
        del extra_args
        if params is None:
            raise InputError("params: expected the current parameters, got None.")
        state = bases.advanced(state, params, updates, batch, rng_key)
        scaled: Any
        scaled, rule_state = rule.update(
            into(structure, state.bases, updates), state.rule, into(structure, state.bases, params)
        )
        found = back(structure, state.bases, scaled, updates)
        return found, state._replace(step=state.step + 1, rule=rule_state)

    return transformation(init, update)


class _MovingBases(eqx.Module):
    """Looks at the factors every so often, and turns the bases when a turn is due.

    Attributes:
        problem: whose loss is minimised.
        structure: its layers.
        source: where the factors come from.
        sides: which of them give a basis.
        layers: those whose bases move.
        period: steps between two looks.
        patience: a turn is due after this share of the steps done.
        decay: of the averages of the factors.
        max_rank: most directions kept of one factor.
    """

    problem: AbstractProblem
    structure: Structure
    source: AbstractSource
    sides: AbstractSides
    layers: tuple[Layer, ...]
    period: int
    patience: float
    decay: float
    max_rank: int

    def init(self, dtype: jnp.dtype) -> tuple[dict[str, Basis], dict[str, Basis]]:
        """Factors of zeros, and bases that turn nothing."""
        nothing = lambda size: jnp.zeros((size, size), dtype)
        factors = {
            layer.weight: Basis(
                nothing(layer.num_inputs),
                nothing(layer.num_outputs) if self.sides.outputs(self.structure, layer) else None,
            )
            for layer in self.layers
        }
        shapes = jax.eval_shape(self._of, factors)
        return factors, jax.tree.map(lambda leaf: jnp.eye(*leaf.shape, dtype=leaf.dtype), shapes)

    def advanced(
        self,
        state: EigenbasisState,
        params: Parameters,
        gradient: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
    ) -> EigenbasisState:
        """The state with the bases of this step, and the rule's state in their coordinates."""
        looked = state.step % self.period == 0
        if self.layers:
            factors, found = jax.lax.cond(
                looked,
                lambda: self._averaged(state, self._seen(params, gradient, batch, rng_key)),
                lambda: _unseen(state.factors),
            )
        else:
            factors, found = _unseen(state.factors)
        due = looked & (state.step >= state.next_turn)
        bases, rule_state, finite = jax.lax.cond(
            due,
            lambda: self._turned(state, factors),
            lambda: (state.bases, state.rule, jnp.ones((), bool)),
        )
        gap = jnp.maximum(self.period, (self.patience * state.step).astype(jnp.int32))
        return state._replace(
            factors=factors,
            bases=bases,
            next_turn=jnp.where(state.step >= state.next_turn, state.step + gap, state.next_turn),
            rule=rule_state,
            findings=joined([found, NotFinite.of([BASES], [~finite])]),
        )

    def _seen(
        self, params: Parameters, gradient: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> dict[str, Basis]:
        """The factors that give a basis, here and now."""
        found: dict[str, Factors] = self.source.factors(
            self.problem, self.structure, params, gradient, batch, rng_key
        )
        turns = lambda layer: self.sides.outputs(self.structure, layer)
        return {
            layer.weight: Basis(
                found[layer.weight].inputs, found[layer.weight].outputs if turns(layer) else None
            )
            for layer in self.layers
        }

    def _averaged(
        self, state: EigenbasisState, new: dict[str, Basis]
    ) -> tuple[dict[str, Basis], NotFinite]:
        found = _findings(new)
        weight = jnp.where(state.step == 0, 1.0, 1.0 - self.decay)
        average, _ = mixed(state.factors, new, weight, usable=~found.any)
        return average, found

    def _turned(
        self, state: EigenbasisState, factors: dict[str, Basis]
    ) -> tuple[dict[str, Basis], PyTree, Bool[Array, ""]]:
        # Those that never change are read off the state: a program holds nobody's data.
        bases = {**state.bases, **self._of(factors)}
        finite = ~NotFinite.in_tree(BASES, bases).any
        turned = bases, turned_state(state.rule, state.bases, bases)
        kept = lambda old, now: jnp.where(finite, now, old)
        return *jax.tree.map(kept, (state.bases, state.rule), turned), finite

    def _of(self, factors: dict[str, Basis]) -> dict[str, Basis]:
        """The eigenvectors of the factors, leading ones first."""
        leaves, treedef = jax.tree.flatten([factors[layer.weight] for layer in self.layers])
        turned = [vectors[:, ::-1] for _, vectors in eigendecompositions(leaves)]
        return {
            layer.weight: basis._replace(inputs=basis.inputs[:, : self._rank(layer)])
            for layer, basis in zip(self.layers, jax.tree.unflatten(treedef, turned), strict=True)
        }

    def _rank(self, layer: Layer) -> int:
        return layer.num_inputs if layer.num_inputs <= 2 * self.max_rank else self.max_rank


def _unseen(factors: dict[str, Basis]) -> tuple[dict[str, Basis], NotFinite]:
    return factors, NotFinite.none(_findings(factors).parts)


def _findings(factors: dict[str, Basis]) -> NotFinite:
    """Which factors are not finite."""
    sides = [
        (f"Fisher factor {side} of {weight}", factor)
        for weight, basis in sorted(factors.items())
        for side, factor in zip("AG", basis, strict=True)
        if factor is not None
    ]
    return NotFinite.of([name for name, _ in sides], [~all_finite(factor) for _, factor in sides])


def _fixed_bases(
    problem: AbstractProblem,
    structure: Structure,
    calibration: PyTree | None,
    parameters: Parameters | None,
    max_rank: int,
) -> dict[str, Basis]:
    """The bases of the layers that the data feed, from the calibration data."""
    if calibration is None:
        return {}
    if parameters is None:
        raise expected("parameters", "the problem's parameters along with calibration", None)
    return bases_of_data(problem, structure, parameters, calibration, max_rank)
