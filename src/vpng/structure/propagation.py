"""The dependence of a traced function on its inputs, element by element.

Every equation is looked at once, and no derivative is taken: an element depends on an input if its
derivative may be something else than zero for some values. What is not floating, or is held fixed
by `stop_gradient`, carries no derivative. A primitive without a rule mixes all that it is given, so
that the sets are always large enough. Indices are followed where they are known, and they are
integers: floating data are never looked at.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from vpng.structure.dependence import Dependence, joined, stacked
from vpng.structure.known import Known, Later, constant, unknown


class Value(NamedTuple):
    """What is known of one array.

    Attributes:
        shape: of the array.
        dependence: on the inputs; None if there is none.
        known: its value, unless that depends on the inputs.
    """

    shape: tuple[int, ...]
    dependence: Dependence | None
    known: Known

    def or_nothing(self, num_inputs: int) -> Dependence:
        """The dependence, written out if there is none."""
        return self.dependence or Dependence.on_nothing(self.shape, num_inputs)


Rule = Callable[[Any, list[Value], int], list[Dependence]]

RULES: dict[str, Rule] = {}
"""By the name of the primitive: (equation, inputs, number of inputs) -> dependence of outputs."""


def rule_for(*names: str) -> Callable[[Rule], Rule]:
    """Decorates the rule of some primitives."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


def dependence_of(function: Callable[[PyTree], Array], point: PyTree) -> Dependence:
    """Of what `function` returns on the flat leaves of its argument.

    Raises:
        TooDenseError: if there is no sparsity worth the memory.
    """
    closed = jax.make_jaxpr(function)(point)
    sizes = [int(np.prod(variable.aval.shape)) for variable in closed.jaxpr.invars]
    starts, total = np.cumsum([0, *sizes]), int(sum(sizes))
    inputs = [
        Value(shape, Dependence.on_itself(shape, start, total), unknown)
        for shape, start in zip(
            [variable.aval.shape for variable in closed.jaxpr.invars], starts, strict=False
        )
    ]
    [found] = propagate(closed.jaxpr, closed.consts, inputs, total)
    return found.or_nothing(total)


def propagate(jaxpr: Any, consts: list[Any], inputs: list[Value], num_inputs: int) -> list[Value]:
    """What is known of the outputs of a traced program."""
    values: dict[Any, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
    for variable, value in zip(jaxpr.constvars, consts, strict=True):
        values[variable] = Value(np.shape(value), None, constant(value))

    def read(atom: Any) -> Value:
        if hasattr(atom, "val"):
            return Value(np.shape(atom.val), None, constant(atom.val))
        return values[atom]

    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        found = _outputs(equation, given, num_inputs)
        values.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def body_of(equation: Any) -> tuple[Any, list[Any]] | None:
    """The program that an equation calls once, and its constants; None if it calls none."""
    body = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if body is None or equation.primitive.name in ("scan", "while"):
        return None
    return (body.jaxpr, body.consts) if hasattr(body, "consts") else (body, [])


def _outputs(equation: Any, given: list[Value], num_inputs: int) -> list[Value]:
    name = equation.primitive.name
    body = body_of(equation)
    if body is not None:
        return propagate(*body, given, num_inputs)
    later = Later(equation, [value.known for value in given])
    moves = [jnp.issubdtype(out.aval.dtype, jnp.floating) for out in equation.outvars]
    still = all(value.dependence is None for value in given)
    found: list[Dependence | None] = [None] * len(moves)
    if not still and any(moves) and name != "stop_gradient":
        rule = RULES.get(name, _mixed)
        found = list(rule(equation, given, num_inputs))
    return [
        Value(out.aval.shape, each if moving else None, later.output(place))
        for place, (out, each, moving) in enumerate(
            zip(equation.outvars, found, moves, strict=True)
        )
    ]


def _mixed(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    """Everything may depend on everything."""
    some = [value.dependence for value in given if value.dependence is not None]
    flat = stacked([part.everywhere((1,)) for part in some], np.concatenate)
    return [flat.everywhere(out.aval.shape) for out in equation.outvars]


def mixed(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    """The rule of what has none."""
    return _mixed(equation, given, num_inputs)


def elementwise(given: list[Value], shape: tuple[int, ...]) -> Dependence:
    """Of what is made element by element."""
    some = [value.dependence for value in given if value.dependence is not None]
    full = [
        part if part.labels.shape == shape else part.moved(lambda a: np.broadcast_to(a, shape))
        for part in some
    ]
    return joined(full)
