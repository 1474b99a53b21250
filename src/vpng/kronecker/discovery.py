"""Finds the layers of any network by tracing the rows of its Fisher."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import jax
from jaxtyping import PyTree

from vpng.fisher.metric import AbstractMetric, Predictive
from vpng.fisher.operator import FisherOperator
from vpng.kronecker import layout
from vpng.kronecker.layout import Index
from vpng.kronecker.product import AbstractProduct, product_of
from vpng.kronecker.program import Equation, Program, Slot, trace
from vpng.kronecker.structure import DENSE_LIMIT, Layer, Other, Structure, by_path, visible
from vpng.problem import AbstractProblem, Parameters, check_problem


def discover(
    problem: AbstractProblem,
    parameters: Parameters,
    batch: PyTree,
    metric: AbstractMetric | None = None,
    *,
    dense_limit: int = DENSE_LIMIT,
) -> Structure:
    """The blocks that a Kronecker-factored curvature of `metric` consists of.

    Nothing is computed: the rows of the metric are traced with the shapes of the arguments, and
    every product of activations with a parameter is a layer, whatever library wrote it.

    Args:
        problem: the problem.
        parameters: its parameters.
        batch: a batch.
        metric: which Fisher; `Predictive()` unless given.
        dense_limit: most entries of the dense block of parameters in no layer.
    """
    check_problem(problem, parameters, batch)
    chosen = Predictive() if metric is None else metric
    found: list[Structure] = []

    def look(parameters: Parameters, batch: PyTree) -> None:
        operator = chosen.operator(problem, parameters, batch, jax.random.key(0))
        found.append(look_at(operator, dense_limit=dense_limit).structure)

    jax.eval_shape(look, parameters, batch)
    return found[0]


@dataclass(frozen=True)
class Use:
    """One product with a weight.

    Attributes:
        position: of its equation in the program.
        product: how weight, activations and cotangents are read as matrices.
        weight: path of the weight.
        permutation: the order of the weight's axes in which it is read as [in, out].
        size: (in, out).
        sources: positions of the products whose outputs reach this one through no other.
        bias: path of what is added to the output alone.
    """

    position: int
    product: AbstractProduct
    weight: str
    permutation: tuple[int, ...]
    size: tuple[int, int]
    sources: frozenset[int]
    bias: str | None = None


@dataclass(frozen=True)
class TracedLayers:
    """A row function as a program, with its layers marked."""

    program: Program
    structure: Structure
    uses: dict[str, tuple[Use, ...]]


def look_at(operator: FisherOperator, *, dense_limit: int = DENSE_LIMIT) -> TracedLayers:
    """Trace the rows of `operator` and find their layers."""
    program = trace(operator.row_function, operator.parameters)
    leaves = by_path(operator.parameters)
    shapes = {path: tuple(leaf.shape) for path, leaf in leaves.items()}
    reader = _Reader(program, shapes)
    uses, outputs = reader.read()
    structure = _structure(uses, outputs, reader.reasons, shapes, dense_limit)
    kept = {
        layer.weight: tuple(use for use in uses if use.weight == layer.weight)
        for layer in structure.layers
    }
    return TracedLayers(program, structure, kept)


@dataclass(frozen=True)
class _Leaf:
    """A value made of the entries of one parameter."""

    path: str
    index: Index


@dataclass(frozen=True)
class _Output:
    """A value that is the output of a product and nothing else."""

    position: int
    features: Index


@dataclass
class _Reader:
    """Reads a program once, from its inputs to its outputs."""

    program: Program
    shapes: dict[str, tuple[int, ...]]
    reasons: dict[str, str] = field(default_factory=dict)

    def read(self) -> tuple[list[Use], frozenset[int]]:
        """Every use of a weight, and the positions of those that reach the outputs directly."""
        self.facts: dict[Slot, _Leaf | _Output] = {
            slot: _Leaf(path, layout.identity(shape))
            for slot, (path, shape) in enumerate(self.shapes.items())
        }
        self.uses: dict[int, Use] = {}
        self.reads = self.program.uses()
        upstream: defaultdict[Slot, frozenset[int]] = defaultdict(frozenset)
        for position, equation in enumerate(self.program.equations):
            slots = [slot for slot in equation.inputs if isinstance(slot, int)]
            reaching = frozenset().union(*(upstream[slot] for slot in slots))
            if equation.name == "stop_gradient":
                continue
            fact = self._read(position, equation, reaching)
            if fact is not None:
                self.facts[equation.outputs[0]] = fact
            if position in self.uses:
                reaching = frozenset({position})
            upstream.update(dict.fromkeys(equation.outputs, reaching))
        outputs = [slot for slot in self.program.outputs if isinstance(slot, int)]
        for slot in outputs:
            self._refuse(slot, "is itself a row")
        return list(self.uses.values()), frozenset().union(*(upstream[slot] for slot in outputs))

    def _read(
        self, position: int, equation: Equation, sources: frozenset[int]
    ) -> _Leaf | _Output | None:
        known = [self._fact(slot) for slot in equation.inputs]
        leaves = [place for place, fact in enumerate(known) if isinstance(fact, _Leaf)]
        if equation.name in layout.LAYOUTS and known[0] is not None:
            return self._relabelled(equation, known[0])
        if equation.name in ("add", "add_any") and self._is_bias(equation, known):
            return None
        leaf = known[leaves[0]] if len(leaves) == 1 else None
        if isinstance(leaf, _Leaf) and (product := product_of(equation, leaves[0])) is not None:
            return self._read_product(position, product, leaf, sources)
        for place in leaves:
            self._refuse(equation.inputs[place], f"enters `{equation.name}`")
        return None

    def _fact(self, slot: object) -> _Leaf | _Output | None:
        return self.facts.get(slot) if isinstance(slot, int) else None

    def _relabelled(self, equation: Equation, fact: _Leaf | _Output) -> _Leaf | _Output | None:
        index = fact.index if isinstance(fact, _Leaf) else fact.features
        shape = equation.output_shape
        moved = layout.relabel(equation.name, equation.params, index, shape)
        if isinstance(fact, _Leaf):
            return replace(fact, index=moved)
        alone = self.reads[equation.inputs[0]] == 1 and moved.size == index.size
        return replace(fact, features=moved) if alone else None

    def _is_bias(self, equation: Equation, known: list[_Leaf | _Output | None]) -> bool:
        """Whether a parameter is added, one entry for each feature, to nothing but an output."""
        place = next((i for i, fact in enumerate(known) if isinstance(fact, _Output)), None)
        if place is None or len(known) != 2:
            return False
        output, leaf = known[place], known[1 - place]
        if not isinstance(output, _Output) or not isinstance(leaf, _Leaf):
            return False
        use = self.uses[output.position]
        fits = (
            use.bias is None
            and self.reads[equation.inputs[place]] == 1
            and leaf.index.size > 0
            and layout.identity(self.shapes[leaf.path]).size == int(output.features.max()) + 1
            and layout.equal(output.features, leaf.index, equation.output_shape)
        )
        if fits:
            self.uses[output.position] = replace(use, bias=leaf.path)
        return fits

    def _read_product(
        self, position: int, product: AbstractProduct, weight: _Leaf, sources: frozenset[int]
    ) -> _Output | None:
        obstacle = product.obstacle()
        if obstacle is not None:
            self.reasons.setdefault(weight.path, obstacle)
            return None
        matrix = product.matrix(weight.index)
        order = layout.permutation_to(matrix, self.shapes[weight.path])
        if order is None:
            reason = "enters a product in part or more than once"
            self.reasons.setdefault(weight.path, reason)
            return None
        self.uses[position] = Use(position, product, weight.path, order, matrix.shape, sources)
        return _Output(position, product.features())

    def _refuse(self, slot: object, reason: str) -> None:
        fact = self._fact(slot)
        if isinstance(fact, _Leaf):
            self.reasons.setdefault(fact.path, reason)


def _structure(
    uses: list[Use],
    outputs: frozenset[int],
    reasons: dict[str, str],
    shapes: dict[str, tuple[int, ...]],
    dense_limit: int,
) -> Structure:
    by_weight: defaultdict[str, list[Use]] = defaultdict(list)
    for use in uses:
        by_weight[use.weight].append(use)
    reasons = dict(reasons)
    biases = [use.bias for use in uses if use.bias is not None]
    for path, group in by_weight.items():
        if len({(use.permutation, use.size) for use in group}) > 1:
            reasons.setdefault(path, "is used as different matrices")
        if path in biases:
            reasons.setdefault(path, "is a weight here and a bias there")
    layers: list[Layer] = []
    weight_at = {use.position: use.weight for use in uses}
    accepted = [path for path in by_weight if path not in reasons]
    sources = {
        path: tuple(sorted({weight_at[p] for use in group for p in use.sources} - {path}))
        for path, group in by_weight.items()
    }
    for path in accepted:
        group = by_weight[path]
        bias = _common_bias(group, biases, reasons)
        first = group[0]
        layers.append(
            Layer(
                weight=path,
                bias=bias,
                kind=first.product.description,
                shape=shapes[path],
                permutation=first.permutation,
                size=first.size,
                bias_shape=() if bias is None else shapes[bias],
                num_uses=len(group),
                sources=visible(sources[path], sources, accepted),
            )
        )
    taken = set(accepted) | {layer.bias for layer in layers}
    without_layer = dict.fromkeys(biases, "is a bias without a layer of its own") | reasons
    others = tuple(
        Other(path, shape, without_layer.get(path, "no row depends on it"), path in without_layer)
        for path, shape in shapes.items()
        if path not in taken
    )
    reached = visible(sorted({weight_at[p] for p in outputs}), sources, accepted)
    return Structure(tuple(layers), others, reached, dense_limit)


def _common_bias(group: list[Use], biases: list[str], reasons: dict[str, str]) -> str | None:
    """The bias that all uses of a weight share, and that nothing else uses."""
    bias = group[0].bias
    shared = all(use.bias == bias for use in group)
    alone = bias is not None and biases.count(bias) == len(group) and bias not in reasons
    return bias if shared and alone else None
