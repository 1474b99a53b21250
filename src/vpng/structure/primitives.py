"""What each primitive makes of the dependence of what it is given."""

from collections.abc import Callable
from typing import Any

import numpy as np

from vpng.structure.dependence import Dependence, added, as_table, joined, multiplied, stacked
from vpng.structure.known import UnknownError, gathered, moving_rule
from vpng.structure.propagation import Value, elementwise, mixed, propagate, rule_for

ELEMENTWISE = (
    "abs", "acos", "acosh", "add", "add_any", "asin", "asinh", "atan", "atan2", "atanh",
    "bessel_i0e", "bessel_i1e", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "copy_p",
    "cos", "cosh", "digamma", "div", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor",
    "igamma", "igamma_grad_a", "igammac", "integer_pow", "lgamma", "log", "log1p", "logistic",
    "max", "min", "mul", "neg", "nextafter", "polygamma", "pow", "random_gamma_grad",
    "reduce_precision", "regularized_incomplete_beta", "rem", "round", "rsqrt", "select_n", "sign",
    "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh", "zeta",
)  # fmt: skip

MOVING = ("squeeze", "expand_dims", "reshape", "broadcast_in_dim", "transpose", "rev", "slice")


@rule_for(*ELEMENTWISE)
def _elementwise(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    return [elementwise(given, equation.outvars[0].aval.shape)]


@rule_for(*MOVING)
def _moving(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    rule = moving_rule(equation.primitive.name, equation.params)
    assert rule is not None
    return [given[0].or_nothing(num_inputs).moved(rule)]


@rule_for("optimization_barrier", "device_put", "sharding_constraint")
def _unchanged(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    return [value.or_nothing(num_inputs) for value in given]


@rule_for("concatenate", "stack")
def _together(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    parts = [value.or_nothing(num_inputs) for value in given]
    if equation.primitive.name == "stack":
        return [stacked(parts, lambda labels: np.stack(labels, equation.params["axis"]))]
    axis = equation.params["dimension"]
    return [stacked(parts, lambda labels: np.concatenate(labels, axis))]


@rule_for("split")
def _split(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    ends = np.cumsum(equation.params["sizes"])[:-1]
    whole = given[0].or_nothing(num_inputs)
    parts = np.split(whole.labels, ends, equation.params["axis"])
    return [Dependence(part, whole.sets) for part in parts]


@rule_for("pad")
def _pad(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    operand, filling = (value.or_nothing(num_inputs) for value in given)
    config = equation.params["padding_config"]
    if any(low < 0 or high < 0 for low, high, _ in config):
        return mixed(equation, given, num_inputs)
    inside = tuple(
        slice(low, low + (length - 1) * (inner + 1) + 1 if length else low, inner + 1)
        for (low, _, inner), length in zip(config, operand.labels.shape, strict=True)
    )

    def put(labels: list[np.ndarray]) -> np.ndarray:
        full = np.broadcast_to(labels[1], equation.outvars[0].aval.shape).copy()
        full[inside] = labels[0]
        return full

    return [stacked([operand, filling], put)]


@rule_for("gather")
def _gather(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    operand, params = given[0].or_nothing(num_inputs), equation.params
    try:
        indices = given[1].known()
    except UnknownError:
        return [operand.everywhere(equation.outvars[0].aval.shape)]
    take = lambda labels: gathered(
        labels, indices, params["dimension_numbers"], params["slice_sizes"]
    )
    return [operand.moved(take)]


@rule_for("dynamic_slice")
def _dynamic_slice(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    operand, sizes = given[0].or_nothing(num_inputs), equation.params["slice_sizes"]
    try:
        starts = [int(value.known()) for value in given[1:]]
    except UnknownError:
        return [operand.everywhere(tuple(sizes))]
    first = [
        int(np.clip(start, 0, length - size))
        for start, length, size in zip(starts, operand.labels.shape, sizes, strict=True)
    ]
    part = tuple(slice(a, a + size) for a, size in zip(first, sizes, strict=True))
    return [operand.moved(lambda labels: labels[part])]


@rule_for("scatter", "scatter_add", "scatter-add", "scatter_mul", "scatter_min", "scatter_max")
def _scatter(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    """Every element of the operand also depends on what is put into it."""
    operand, updates = given[0].or_nothing(num_inputs), given[2].or_nothing(num_inputs)
    try:
        indices = given[1].known()
    except UnknownError:
        return mixed(equation, given, num_inputs)
    numbers = _ScatterAsGather(equation.params["dimension_numbers"])
    windows = iter(updates.labels.shape[axis] for axis in numbers.offset_dims)
    hidden = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    sizes = [1 if axis in hidden else next(windows) for axis in range(operand.labels.ndim)]
    places = np.arange(operand.labels.size).reshape(operand.labels.shape)
    targets = gathered(places, indices, numbers, sizes)
    ones = np.ones(targets.size, bool)
    pairs = (targets.ravel(), updates.labels.ravel())
    chosen = as_table((ones, pairs), shape=(places.size, updates.sets.shape[0]))
    sets = added(operand.by_element, multiplied(as_table(chosen.astype(bool)), updates.sets))
    return [Dependence(places, sets)]


class _ScatterAsGather:
    """The dimension numbers of a scatter in the names of the gather that reads where it writes."""

    def __init__(self, numbers: Any) -> None:
        self.offset_dims = numbers.update_window_dims
        self.collapsed_slice_dims = numbers.inserted_window_dims
        self.start_index_map = numbers.scatter_dims_to_operand_dims
        self.operand_batching_dims = numbers.operand_batching_dims
        self.start_indices_batching_dims = numbers.scatter_indices_batching_dims


@rule_for("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
def _reduced(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    return [given[0].or_nothing(num_inputs).over(tuple(equation.params["axes"]))]


@rule_for("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulated(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    return [given[0].or_nothing(num_inputs).along((equation.params["axis"],))]


@rule_for("sort")
def _sorted(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    every = joined([value.or_nothing(num_inputs) for value in given])
    return [every.along((equation.params["dimension"],))] * len(given)


@rule_for("dot_general")
def _dot_general(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    contracted, batched = equation.params["dimension_numbers"]
    shape, parts = equation.outvars[0].aval.shape, []
    for place, value in enumerate(given):
        if value.dependence is None:
            continue
        kept = tuple(axis for axis in range(len(value.shape)) if axis not in contracted[place])
        reduced = value.dependence.over(contracted[place])
        # Batches come first, then the axes of the left operand, then those of the right one.
        batch = [kept.index(axis) for axis in batched[place]]
        own = [axis for axis in range(len(kept)) if axis not in batch]
        others = len(shape) - len(kept)
        where = range(len(batch), len(batch) + others) if place else range(len(kept), len(shape))
        parts.append(reduced.moved(_widened((*batch, *own), tuple(where), shape)))
    return [joined(parts)]


def _widened(
    order: tuple[int, ...], new: tuple[int, ...], shape: tuple[int, ...]
) -> Callable[[np.ndarray], np.ndarray]:
    """Axes put in order, and copies made along new ones."""
    return lambda labels: np.broadcast_to(np.expand_dims(labels.transpose(order), new), shape)


@rule_for("cholesky", "triangular_solve", "lu", "eigh", "qr", "svd", "householder_product")
def _linear_algebra(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    """Matrices of a batch do not mix."""
    reduced = [
        value.dependence.over(tuple(range(value.dependence.labels.ndim))[-2:])
        for value in given
        if value.dependence is not None
    ]
    every = joined(reduced)
    outputs = []
    for out in equation.outvars:
        shape, batch = out.aval.shape, every.labels.shape
        own = (*batch, *(1,) * (len(shape) - len(batch)))
        widen = lambda labels, own=own, shape=shape: np.broadcast_to(labels.reshape(own), shape)
        outputs.append(every.moved(widen))
    return outputs


@rule_for("cond")
def _cond(equation: Any, given: list[Value], num_inputs: int) -> list[Dependence]:
    """Any branch may be taken."""
    branches = [
        propagate(branch.jaxpr, branch.consts, given[1:], num_inputs)
        for branch in equation.params["branches"]
    ]
    return [
        joined([each.or_nothing(num_inputs) for each in outputs])
        for outputs in zip(*branches, strict=True)
    ]
