"""A traced function as a flat list of equations, with calls inlined and dead ones removed."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal
from jaxtyping import Array, PyTree

_CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"})
_CUSTOM_CALLS = frozenset({"custom_jvp_call", "custom_vjp_call"})
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})

Slot = int


@dataclass(frozen=True)
class Equation:
    """One primitive: `outputs` are the slots it writes; an input is a slot or a literal."""

    source: JaxprEqn
    inputs: tuple[Slot | Literal, ...]
    outputs: tuple[Slot, ...]

    @property
    def name(self) -> str:
        """The primitive's name."""
        return self.source.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The primitive's parameters."""
        return self.source.params

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of an input."""
        return _shape(self.source.invars[position])

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return _shape(self.source.outvars[0])

    def evaluate(self, values: list[Any]) -> list[Any]:
        """The outputs, given the value of every input."""
        primitive = self.source.primitive
        with self.source.ctx.manager:
            results = primitive.bind(*values, **primitive.get_bind_params(self.source.params))
        return list(results) if primitive.multiple_results else [results]


@dataclass(frozen=True)
class Program:
    """A function of the leaves of a pytree, which are slots 0, 1, ... in their order.

    Attributes:
        num_inputs: number of leaves.
        constants: values that the function closes over, by slot.
        equations: in order of evaluation.
        outputs: slots or literals.
    """

    num_inputs: int
    constants: dict[Slot, Any]
    equations: tuple[Equation, ...]
    outputs: tuple[Slot | Literal, ...]

    def uses(self) -> Counter[Slot | Literal]:
        """How often each slot is read."""
        reads: Counter[Slot | Literal] = Counter()
        for equation in self.equations:
            reads.update(slot for slot in equation.inputs if not isinstance(slot, Literal))
        reads.update(slot for slot in self.outputs if not isinstance(slot, Literal))
        return reads

    def evaluate(
        self, leaves: list[Array], additions: dict[int, Array]
    ) -> tuple[list[Array], dict[int, list[Any]]]:
        """Run the program with something added to the outputs of some equations.

        Args:
            leaves: the inputs.
            additions: what is added to the first output of an equation, by its position.

        Returns:
            The outputs, and the inputs of each of those equations.
        """
        values: dict[Slot, Any] = dict(enumerate(leaves)) | self.constants

        def read(slot: Slot | Literal) -> Any:
            return slot.val if isinstance(slot, Literal) else values[slot]

        seen: dict[int, list[Any]] = {}
        for position, equation in enumerate(self.equations):
            inputs = [read(slot) for slot in equation.inputs]
            results = equation.evaluate(inputs)
            if position in additions:
                seen[position] = inputs
                results = [results[0] + additions[position]]
            values.update(zip(equation.outputs, results, strict=True))
        return [read(slot) for slot in self.outputs], seen


def trace(function: Callable[[PyTree], Array], parameters: PyTree) -> Program:
    """The program of `function` at `parameters`.

    Calls (jit, checkpoint, ...) are inlined. A function with its own derivative rule stays whole,
    so that the rule is used, unless there are products inside that may be layers.
    """
    closed = jax.make_jaxpr(function)(parameters)
    builder = _Builder(len(closed.jaxpr.invars))
    outputs = builder.inline(closed.jaxpr, closed.consts, tuple(range(builder.next_slot)))
    equations = _alive(builder.equations, outputs)
    return Program(len(closed.jaxpr.invars), builder.constants, equations, outputs)


class _Builder:
    def __init__(self, num_inputs: int) -> None:
        self.next_slot = num_inputs
        self.constants: dict[Slot, Any] = {}
        self.equations: list[Equation] = []

    def new(self) -> Slot:
        self.next_slot += 1
        return self.next_slot - 1

    def inline(
        self, jaxpr: Jaxpr, constants: list[Any], inputs: tuple[Slot | Literal, ...]
    ) -> tuple[Slot | Literal, ...]:
        slots: dict[Any, Slot | Literal] = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            slots[variable] = slot = self.new()
            self.constants[slot] = value

        def read(atom: Any) -> Slot | Literal:
            return atom if isinstance(atom, Literal) else slots[atom]

        for source in jaxpr.eqns:
            arguments = tuple(read(atom) for atom in source.invars)
            if _is_inlined(source):
                body, consts = _body(source)
                results = self.inline(body, consts, arguments)
            else:
                results = tuple(self.new() for _ in source.outvars)
                self.equations.append(Equation(source, arguments, results))
            slots.update(zip(source.outvars, results, strict=True))
        return tuple(read(atom) for atom in jaxpr.outvars)


def _shape(variable: Any) -> tuple[int, ...]:
    return variable.aval.shape


def _body(source: JaxprEqn) -> tuple[Jaxpr, list[Any]]:
    body = source.params.get("jaxpr", source.params.get("call_jaxpr"))
    if isinstance(body, ClosedJaxpr):
        return body.jaxpr, body.consts
    assert isinstance(body, Jaxpr)
    return body, []


def _is_inlined(source: JaxprEqn) -> bool:
    if source.primitive.name in _CUSTOM_CALLS:
        names = _primitive_names(_body(source)[0])
        return bool(names & _PRODUCTS) and "while" not in names
    return source.primitive.name in _CALLS


def _primitive_names(jaxpr: Jaxpr) -> set[str]:
    names: set[str] = set()
    for source in jaxpr.eqns:
        names.add(source.primitive.name)
        if source.primitive.name in _CALLS | _CUSTOM_CALLS:
            names |= _primitive_names(_body(source)[0])
    return names


def _alive(equations: list[Equation], outputs: tuple[Slot | Literal, ...]) -> tuple[Equation, ...]:
    needed = {slot for slot in outputs if not isinstance(slot, Literal)}
    kept = []
    for equation in reversed(equations):
        if needed.intersection(equation.outputs):
            kept.append(equation)
            needed.update(slot for slot in equation.inputs if not isinstance(slot, Literal))
    return tuple(reversed(kept))
