"""A traced program in which nothing is computed twice, and nothing in vain.

Loss, scores and metric of a step each run model and guide, and draw the same latents from the same
key. The compiler finds that too, but only after every copy has been lowered and read: half of the
equations of a small model's step are such copies.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jaxtyping import Array

from vpng.numerics.derivatives import parts

_CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
}
"""Equations that only run a program, and where they have it. Derivatives have been taken before."""

_LOOPS = ("while", "scan", "cond")

_APART = ("optimization_barrier", "pure_callback", "io_callback")
"""What is there to be kept apart."""

_SAME = ("stop_gradient", "copy")
"""What changes nothing in a program that is not differentiated any more."""

Atom = Var | Literal


def simplified(program: ClosedJaxpr) -> ClosedJaxpr:
    """The same program of fewer equations: equal ones once, calls in line, unused ones left out."""
    places, first = program.jaxpr.constvars, {}
    instead: dict[Var, Atom] = {
        place: first.setdefault(_content(constant), place)
        for place, constant in zip(places, program.consts, strict=True)
    }
    simple = _Simplifier(instead).simplify(program.jaxpr)
    read = {atom for equation in simple.eqns for atom in equation.invars if isinstance(atom, Var)}
    read.update(atom for atom in simple.outvars if isinstance(atom, Var))
    kept = [i for i, place in enumerate(places) if place in read]
    simple = simple.replace(constvars=[places[i] for i in kept])
    return ClosedJaxpr(simple, [program.consts[i] for i in kept])


def evaluated(program: ClosedJaxpr, constants: list[Array], leaves: Sequence[Array]) -> list[Array]:
    """What a program returns with these constants in the place of its own."""
    return jaxpr_as_fun(ClosedJaxpr(program.jaxpr, constants))(*leaves)


class _Simplifier:
    """Of one program, without those that its loops run."""

    def __init__(self, instead: dict[Var, Atom]) -> None:
        self._instead = instead
        self._known: dict[Hashable, Sequence[Var]] = {}
        self._equations: list[JaxprEqn] = []

    def simplify(self, jaxpr: Jaxpr) -> Jaxpr:
        for equation in jaxpr.eqns:
            self._add(equation)
        results = [self._read(atom) for atom in jaxpr.outvars]
        return jaxpr.replace(eqns=_used(self._equations, results), outvars=results)

    def _read(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self._instead.get(atom, atom)

    def _add(self, equation: JaxprEqn) -> None:
        inputs = [self._read(atom) for atom in equation.invars]
        called = _called(equation)
        if called is not None:
            self._add_in_line(called, inputs, equation.outvars)
            return
        if equation.primitive.name in _SAME and equation.outvars[0].aval == inputs[0].aval:
            self._instead[equation.outvars[0]] = inputs[0]
            return
        key = _key(equation, inputs)
        known = None if key is None else self._known.get(key)
        if known is not None:
            self._instead.update(zip(equation.outvars, known, strict=True))
            return
        outputs = equation.outvars
        if key is not None:
            # What this one leaves may be what an equal one is for.
            outputs = [Var(v.aval) if isinstance(v, DropVar) else v for v in outputs]
            self._known[key] = outputs
        new = equation.replace(invars=inputs, outvars=outputs, params=_params(equation))
        self._equations.append(new)

    def _add_in_line(self, called: Jaxpr, inputs: list[Atom], outputs: Sequence[Var]) -> None:
        # Every call has variables of its own.
        own: dict[Var, Atom] = dict(zip(called.invars, inputs, strict=True))
        read = lambda atom: atom if isinstance(atom, Literal) else self._read(own[atom])
        for equation in called.eqns:
            new = [v if isinstance(v, DropVar) else Var(v.aval) for v in equation.outvars]
            inside = [read(atom) for atom in equation.invars]
            own.update(zip(equation.outvars, new, strict=True))
            self._add(equation.replace(invars=inside, outvars=new))
        results = [read(atom) for atom in called.outvars]
        self._instead.update(zip(outputs, results, strict=True))


def _content(constant: Any) -> Hashable:
    """Equal for constants that are; an array of JAX equals itself alone."""
    if isinstance(constant, jax.Array):
        return id(constant)
    host = np.asarray(constant)
    return str(jax.typeof(constant)), host.dtype.str, host.tobytes()


def _used(equations: list[JaxprEqn], results: list[Atom]) -> list[JaxprEqn]:
    """Those that the results need, and those that do more than compute."""
    wanted = {atom for atom in results if isinstance(atom, Var)}
    found = []
    for equation in reversed(equations):
        if equation.effects or any(variable in wanted for variable in equation.outvars):
            found.append(equation)
            wanted.update(atom for atom in equation.invars if isinstance(atom, Var))
    return found[::-1]


def _called(equation: JaxprEqn) -> Jaxpr | None:
    """The program of an equation that only runs it, where the compiler is told nothing about it."""
    place = _CALLS.get(equation.primitive.name)
    if place is None or equation.effects or equation.params[place].consts:
        return None
    told = [*equation.params.get("in_shardings", ()), *equation.params.get("out_shardings", ())]
    free = all(type(sharding).__name__ == "UnspecifiedValue" for sharding in told)
    return equation.params[place].jaxpr if free else None


def _params(equation: JaxprEqn) -> dict[str, Any]:
    """The parameters of an equation, with programs of loops and branches simplified too."""
    if equation.primitive.name not in _LOOPS:
        return equation.params
    return {name: _inside(value) for name, value in equation.params.items()}


def _inside(value: Any) -> Any:
    if isinstance(value, ClosedJaxpr):
        return simplified(value)
    if isinstance(value, tuple) and value and all(isinstance(v, ClosedJaxpr) for v in value):
        return tuple(map(simplified, value))
    return value


def _key(equation: JaxprEqn, inputs: list[Atom]) -> Hashable | None:
    """What two equations have in common that compute the same; None for one of its own."""
    name = equation.primitive.name
    if equation.effects or name in _APART or next(parts(equation), None) is not None:
        return None
    about = (name, *sorted(equation.params.items(), key=lambda item: item[0]))
    types = tuple(str(variable.aval) for variable in equation.outvars)
    key = (about, types, tuple(map(_same, inputs)))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _same(atom: Atom) -> Hashable:
    """Equal for inputs that are."""
    if isinstance(atom, Var):
        return atom
    value = np.asarray(atom.val)
    return str(atom.aval), value.dtype.str, value.tobytes()
