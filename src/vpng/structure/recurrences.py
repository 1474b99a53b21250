"""The dependence of a scan, from that of its body, which is looked at once.

With Boolean matrices for the body, h_t = A h_{t-1} + B x_t + C c and y_t = D h_{t-1} + E x_t + F c.
Where powers of A vanish, as they do if the carry is the last state alone, h_t depends on the last
few x. Where they do not, every step depends on the whole past, and is taken to depend on all.

A body may take its slices itself, by a counter in its carry: a constant of which single elements
are read is followed step by step, as long as the scan is short.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import eye_array, kron, vstack

from vpng.structure.dependence import Dependence, Table, added, as_table, multiplied, stacked
from vpng.structure.known import unknown
from vpng.structure.propagation import Value, propagate, rule_for

LONGEST_MEMORY = 8
"""Steps after which a carry that still remembers is taken to remember everything."""


MOST_STEPS = 300
"""Of a scan that is followed step by step."""


class _Parts(NamedTuple):
    """What belongs to the constants, the carry and the slices of a scan."""

    constants: list
    carry: list
    slices: list

    @classmethod
    def of(cls, everything: list, params: dict[str, Any]) -> "_Parts":
        first, second = params["num_consts"], params["num_consts"] + params["num_carry"]
        return cls(everything[:first], everything[first:second], everything[second:])


@rule_for("scan")
def _scan(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    params, body = equation.params, equation.params["jaxpr"]
    held_ones = given[: params["num_consts"]]
    wide = any(each.dependence and each.dependence.sets.nnz > 1 for each in held_ones)
    if wide and params["length"] <= MOST_STEPS:
        return _step_by_step(equation, given, num_inputs)
    length, num_carry = params["length"], params["num_carry"]
    local = _Parts.of(list(body.jaxpr.invars), params)
    sizes = [sum(_size(variable) for variable in part) for part in local]
    total, starts = sum(sizes), np.cumsum([0, *(_size(v) for v in body.jaxpr.invars)])
    held = len(local.constants)
    inputs = [
        Value(
            variable.aval.shape,
            Dependence.on_itself(variable.aval.shape, start, total),
            given[place].known if place < held else unknown,
        )
        for place, (variable, start) in enumerate(zip(body.jaxpr.invars, starts, strict=False))
    ]
    found = propagate(body.jaxpr, body.consts, inputs, total)
    table = lambda values: _rows([value.or_nothing(total) for value in values], total)
    ends = np.cumsum(sizes)
    split = lambda rows: (rows[:, : ends[0]], rows[:, ends[0] : ends[1]], rows[:, ends[1] :])
    carried, emitted = split(table(found[:num_carry])), split(table(found[num_carry:]))

    outer = _Parts.of([value.or_nothing(num_inputs) for value in given], params)
    order = np.arange(length)[::-1] if params["reverse"] else np.arange(length)
    constants = _rows(outer.constants, num_inputs)
    begin = _rows(outer.carry, num_inputs)
    slices = _by_step(outer.slices, order, num_inputs)

    after = _states(carried, constants, begin, slices, length)
    before = as_table(vstack([begin, after[: after.shape[0] - sizes[1]]]))
    outputs = _step(emitted, constants, before, slices, length)
    last = after[after.shape[0] - sizes[1] :]
    return [
        *_unstacked(last, [out.aval.shape for out in equation.outvars[:num_carry]]),
        *_emitted(outputs, [out.aval.shape for out in equation.outvars[num_carry:]], order),
    ]


def _step_by_step(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    """The body looked at in every step, with the counters of its carry known."""
    params, body = equation.params, equation.params["jaxpr"]
    outer, length = _Parts.of(given, params), params["length"]
    order = range(length)[::-1] if params["reverse"] else range(length)
    carry, emitted = outer.carry, {}
    for step in order:
        slices = [_slice(value, step) for value in outer.slices]
        found = propagate(body.jaxpr, body.consts, [*outer.constants, *carry, *slices], num_inputs)
        carry, emitted[step] = found[: len(carry)], found[len(carry) :]
    whole = [
        stacked([emitted[step][place].or_nothing(num_inputs) for step in range(length)], np.stack)
        for place in range(len(emitted[0]))
    ]
    return [*(value.or_nothing(num_inputs) for value in carry), *whole]


def _slice(value: Value, step: int) -> Value:
    moved = None
    if value.dependence is not None:
        labels = value.dependence.labels[step]
        used, places = np.unique(labels, return_inverse=True)
        moved = Dependence(places.reshape(labels.shape), value.dependence.sets[used])
    return Value(value.shape[1:], moved, lambda: value.known()[step])


def _size(variable: Any) -> int:
    return int(np.prod(variable.aval.shape))


def _rows(parts: list[Dependence], num_inputs: int) -> Table:
    """The sets of all elements of some arrays."""
    tables = [part.by_element for part in parts]
    return as_table(vstack(tables)) if tables else as_table((0, num_inputs), dtype=bool)


def _by_step(parts: list[Dependence], order: np.ndarray, num_inputs: int) -> Table:
    """The sets of the slices of all steps, those of the first step before those of the second."""
    tables = [part.by_element for part in parts]
    if not tables:
        return as_table((0, num_inputs), dtype=bool)
    length = len(order)
    widths = [table.shape[0] // length for table in tables]
    offsets = np.cumsum([0, *(table.shape[0] for table in tables)])
    places = [
        offset + order[:, None] * width + np.arange(width)
        for offset, width in zip(offsets, widths, strict=False)
    ]
    return as_table(as_table(vstack(tables))[np.concatenate(places, axis=1).ravel()])


def _repeated(matrix: Table, table: Table, length: int) -> Table:
    """The matrix applied to the rows of every step."""
    return multiplied(as_table(kron(eye_array(length, dtype=bool), matrix, format="csr")), table)


def _step(matrices: tuple, constants: Table, before: Table, slices: Table, length: int) -> Table:
    """What one step makes of the state before it, for all steps."""
    of_constants, of_state, of_slices = matrices
    held = as_table(vstack([multiplied(of_constants, constants)] * length))
    moved = added(held, _repeated(of_state, before, length))
    return added(moved, _repeated(of_slices, slices, length)) if slices.shape[0] else moved


def _states(matrices: tuple, constants: Table, begin: Table, slices: Table, length: int) -> Table:
    """The state after every step."""
    memory, size = matrices[1], begin.shape[0]
    nothing = as_table(((length - 1) * size, begin.shape[1]), dtype=bool)
    states = _step(matrices, constants, as_table(vstack([begin, nothing])), slices, length)
    for _ in range(min(length, LONGEST_MEMORY)):
        shifted = as_table(vstack([begin, states[: (length - 1) * size]]))
        longer = _step(matrices, constants, shifted, slices, length)
        if longer.nnz == states.nnz:
            return longer
        states = longer
    everything = np.unique(np.concatenate([states.indices, begin.indices, slices.indices]))
    # What has no memory and depends on nothing stays as it is.
    full = np.zeros((1, states.shape[1]), bool)
    full[0, everything] = True
    remembers = np.diff(memory.indptr) > 0
    kept = as_table(np.tile(remembers, length)[:, None])
    return added(states, multiplied(kept, as_table(full)))


def _unstacked(table: Table, shapes: list[tuple[int, ...]]) -> list[Dependence]:
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    return [
        Dependence(np.arange(stop - start).reshape(shape), as_table(table[start:stop]))
        for start, stop, shape in zip(ends[:-1], ends[1:], shapes, strict=True)
    ]


def _emitted(table: Table, shapes: list[tuple[int, ...]], order: np.ndarray) -> list[Dependence]:
    length = len(order)
    widths = [int(np.prod(shape)) // length for shape in shapes]
    places = np.arange(table.shape[0]).reshape(length, -1)
    ends = np.cumsum([0, *widths])
    by_time = places[np.argsort(order)]
    return [
        Dependence(by_time[:, start:stop].reshape(shape), table)
        for start, stop, shape in zip(ends[:-1], ends[1:], shapes, strict=True)
    ]
