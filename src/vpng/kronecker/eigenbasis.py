"""Any optax rule run in the eigenbasis of the Kronecker factors.

Factors -> basis -> rule in that basis. A layer's block of the metric is A (x) G; with A = Q L Q^T
the coordinates Q^T V of its parameters V have uncorrelated inputs, and a rule that scales every
coordinate for itself (Adam, RMSProp) then sees a metric that is nearly diagonal. When the basis
turns by R = Q_new^T Q_old, first moments turn with R and second moments with R o R, entry by entry:
without that the moments belong to other coordinates and the run diverges.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from vpng.checks import positive_integer
from vpng.errors import InputError, expected
from vpng.fisher import AbstractMetric, Predictive, Probed
from vpng.kronecker.factor_statistics import Factors, statistics
from vpng.kronecker.inverses import eigendecompositions
from vpng.kronecker.structure import Layer, Structure, by_path, with_leaves
from vpng.not_finite import NotFinite, joined
from vpng.numerics.optax_types import transformation
from vpng.numerics.trees import all_finite
from vpng.problem import AbstractProblem, Parameters

BASES = "eigenvectors of the Fisher factors"

Coordinates = dict[str, Float[Array, "..."]]


class Basis(NamedTuple):
    """The eigenvectors of one layer's factors, leading ones first.

    Attributes:
        inputs: of A, [n, r].
        outputs: of G, [m, m]; None if the outputs are not turned.
    """

    inputs: Float[Array, "n r"]
    outputs: Float[Array, "m m"] | None

    def into(self, matrix: Float[Array, "n m"]) -> Float[Array, "r m"]:
        """Q_A^T V Q_G."""
        turned = self.inputs.T @ matrix
        return turned if self.outputs is None else turned @ self.outputs

    def back(self, matrix: Float[Array, "r m"]) -> Float[Array, "n m"]:
        """Q_A V Q_G^T."""
        turned = self.inputs @ matrix
        return turned if self.outputs is None else turned @ self.outputs.T


class AbstractSides(eqx.Module):
    """Which factors give a basis."""

    @abstractmethod
    def outputs(self, structure: Structure, layer: Layer) -> bool:
        """Whether the outputs of `layer` are turned too."""


class Inputs(AbstractSides):
    """The inputs of every layer alone."""

    def outputs(self, structure: Structure, layer: Layer) -> bool:
        return False


class InputsAndOutputs(AbstractSides):
    """Inputs and outputs, but for the last layers' outputs: their factor is nearly diagonal."""

    def outputs(self, structure: Structure, layer: Layer) -> bool:
        return layer.weight not in structure.outputs


class AbstractSource(eqx.Module):
    """Where the factors come from."""

    @abstractmethod
    def factors(
        self,
        problem: AbstractProblem,
        structure: Structure,
        params: Parameters,
        gradient: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
    ) -> dict[str, Factors]:
        """A and G of every layer."""


class FisherFactors(AbstractSource):
    """The Kronecker factors of a metric.

    Attributes:
        metric: by default the predictive Fisher from one probe on at most 256 data.
    """

    metric: AbstractMetric = Predictive(Probed(num_probes=1), num_particles=1, max_data=256)

    def factors(
        self,
        problem: AbstractProblem,
        structure: Structure,
        params: Parameters,
        gradient: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
    ) -> dict[str, Factors]:
        return statistics(structure, self.metric.operator(problem, params, batch, rng_key)).layers


class GradientFactors(AbstractSource):
    """V V^T and V^T V of the gradient V itself, as in SOAP: no metric, for comparison."""

    def factors(
        self,
        problem: AbstractProblem,
        structure: Structure,
        params: Parameters,
        gradient: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
    ) -> dict[str, Factors]:
        leaves = by_path(gradient)
        matrices = {layer.weight: layer.matrix(leaves) for layer in structure.layers}
        return {name: Factors(v @ v.T, v.T @ v) for name, v in matrices.items()}


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
    moving = tuple(layer for layer in structure.layers if layer.weight not in fixed)

    def rank(layer: Layer) -> int:
        return layer.num_inputs if layer.num_inputs <= 2 * max_rank else max_rank

    def chosen_factors(found: dict[str, Factors]) -> dict[str, Basis]:
        return {
            layer.weight: Basis(
                found[layer.weight].inputs,
                found[layer.weight].outputs if sides.outputs(structure, layer) else None,
            )
            for layer in moving
        }

    def bases_of(factors: dict[str, Basis]) -> dict[str, Basis]:
        leaves, treedef = jax.tree.flatten([factors[layer.weight] for layer in moving])
        turned = [vectors[:, ::-1] for _, vectors in eigendecompositions(leaves)]
        return {
            layer.weight: basis._replace(inputs=basis.inputs[:, : rank(layer)])
            for layer, basis in zip(moving, jax.tree.unflatten(treedef, turned), strict=True)
        }

    def into(bases: dict[str, Basis], tree: PyTree) -> Coordinates:
        leaves = by_path(tree)
        turned = {
            layer.weight: bases[layer.weight].into(layer.matrix(leaves))
            for layer in structure.layers
        }
        return {**turned, **{other.path: leaves[other.path] for other in structure.others}}

    def back(bases: dict[str, Basis], coordinates: Coordinates, like: PyTree) -> PyTree:
        found = {other.path: coordinates[other.path] for other in structure.others}
        for layer in structure.layers:
            found |= layer.leaves(bases[layer.weight].back(coordinates[layer.weight]))
        leaves = by_path(like)
        return with_leaves(
            like, {path: leaf.astype(leaves[path].dtype) for path, leaf in found.items()}
        )

    def init(params: Parameters) -> EigenbasisState:
        structure.check_covers(params)
        dtype = jnp.result_type(*jax.tree.leaves(params))
        factors = {
            layer.weight: Basis(
                jnp.zeros((layer.num_inputs, layer.num_inputs), dtype),
                jnp.zeros((layer.num_outputs, layer.num_outputs), dtype)
                if sides.outputs(structure, layer)
                else None,
            )
            for layer in moving
        }
        shapes = jax.eval_shape(bases_of, factors)
        bases = jax.tree.map(lambda leaf: jnp.eye(*leaf.shape, dtype=leaf.dtype), shapes)
        bases = {**bases, **fixed}
        zero = jnp.zeros((), jnp.int32)
        findings = NotFinite.none([*_findings(factors).parts, BASES])
        return EigenbasisState(zero, factors, bases, zero, rule.init(into(bases, params)), findings)

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
        first = state.step == 0

        def look() -> tuple[dict[str, Basis], NotFinite]:
            new = chosen_factors(
                source.factors(problem, structure, params, updates, batch, rng_key)
            )
            found = _findings(new)
            mixed = jax.tree.map(
                lambda old, now: jnp.where(first, now, decay * old + (1 - decay) * now),
                state.factors,
                new,
            )
            kept = lambda old, now: jnp.where(found.any, old, now)
            return jax.tree.map(kept, state.factors, mixed), found

        def not_looked() -> tuple[dict[str, Basis], NotFinite]:
            return state.factors, NotFinite.none(_findings(state.factors).parts)

        looked = state.step % statistics_period == 0
        factors, found = jax.lax.cond(looked, look, not_looked) if moving else not_looked()

        def turn() -> tuple[dict[str, Basis], PyTree, Array]:
            # Those that never change are read off the state: a program holds nobody's data.
            bases = {**state.bases, **bases_of(factors)}
            finite = ~NotFinite.in_tree(BASES, bases).any
            turned = bases, _turned(state.rule, state.bases, bases)
            kept = lambda old, now: jnp.where(finite, now, old)
            return *jax.tree.map(kept, (state.bases, state.rule), turned), finite

        bases, rule_state, finite = jax.lax.cond(
            looked & (state.step >= state.next_turn),
            turn,
            lambda: (state.bases, state.rule, jnp.ones((), bool)),
        )
        findings = joined([found, NotFinite.of([BASES], [~finite])])
        gap = jnp.maximum(statistics_period, (patience * state.step).astype(jnp.int32))
        next_turn = jnp.where(state.step >= state.next_turn, state.step + gap, state.next_turn)
        scaled: Any
        scaled, rule_state = rule.update(into(bases, updates), rule_state, into(bases, params))
        return back(bases, scaled, updates), EigenbasisState(
            state.step + 1, factors, bases, next_turn, rule_state, findings
        )

    return transformation(init, update)


def _findings(factors: dict[str, Basis]) -> NotFinite:
    """Which factors are not finite."""
    sides = [
        (f"Fisher factor {side} of {weight}", factor)
        for weight, basis in sorted(factors.items())
        for side, factor in zip("AG", basis, strict=True)
        if factor is not None
    ]
    return NotFinite.of([name for name, _ in sides], [~all_finite(factor) for _, factor in sides])


def leading_eigenvectors(factor: Float[Array, "n n"], rank: int) -> Float[Array, "n r"]:
    """The eigenvectors of the `rank` largest eigenvalues, largest first."""
    _, vectors = jnp.linalg.eigh(factor)
    return vectors[:, ::-1][:, :rank]


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
    return _leading_bases(problem, structure, parameters, calibration, max_rank)


@eqx.filter_jit
def _leading_bases(
    problem: AbstractProblem,
    structure: Structure,
    parameters: Parameters,
    batch: PyTree,
    max_rank: int,
) -> dict[str, Basis]:
    """The leading directions of the inputs of each layer that the data feed."""
    metric = Predictive(Probed(num_probes=1), num_particles=1)
    operator = metric.operator(problem, parameters, batch, jax.random.key(0))
    found = statistics(structure, operator).layers
    return {
        layer.weight: Basis(
            leading_eigenvectors(found[layer.weight].inputs, min(layer.num_inputs, max_rank)), None
        )
        for layer in structure.layers
        if not layer.sources
    }


_MOMENTS: dict[type, Callable[[Any, Callable, Callable], Any]] = {
    optax.ScaleByAdamState: lambda state, first, second: state._replace(
        mu=first(state.mu), nu=second(state.nu)
    ),
    optax.ScaleByRmsState: lambda state, first, second: state._replace(nu=second(state.nu)),
    optax.TraceState: lambda state, first, second: state._replace(trace=first(state.trace)),
}


def _turn(old: Array | None, new: Array | None) -> Array | None:
    return None if old is None or new is None else old.T @ new


def _turned(state: PyTree, old: dict[str, Basis], new: dict[str, Basis]) -> PyTree:
    """A rule's state in new coordinates: moments turn, everything else stays."""
    rotations = {
        name: Basis(
            new[name].inputs.T @ basis.inputs,
            _turn(basis.outputs, new[name].outputs),
        )
        for name, basis in old.items()
    }

    def apply(coordinates: Coordinates, power: int) -> Coordinates:
        found = dict(coordinates)
        for name, rotation in rotations.items():
            turned = rotation.inputs**power @ coordinates[name]
            if rotation.outputs is not None:
                turned = turned @ rotation.outputs**power
            found[name] = turned
        return found

    def visit(node: Any) -> Any:
        turn = _MOMENTS.get(type(node))
        return node if turn is None else turn(node, lambda c: apply(c, 1), lambda c: apply(c, 2))

    return jax.tree.map(visit, state, is_leaf=lambda node: type(node) in _MOMENTS)
