"""What a transformation is handed by optax, which may mask some of it, and what it hands back."""

import jax
from jaxtyping import PyTree

from vpng.errors import InputError, expected
from vpng.problem import Parameters


def current(params: Parameters | None) -> Parameters:
    """The current parameters, which optax lets one leave out."""
    if params is None:
        raise InputError("params: expected the current parameters, got None.")
    return of_problem(params)


def of_problem(params: object) -> Parameters:
    """`params` as they belong to a problem: any other pytree fails late and without a reason."""
    if not isinstance(params, Parameters):
        raise expected("params", "vpng.Parameters(variational, model)", type(params).__name__)
    return params


def filled(direction: PyTree, updates: PyTree) -> PyTree:
    """`direction` with the updates themselves in its gaps: what is not acted on passes through."""
    return jax.tree.map(
        lambda new, old: old if new is None else new,
        direction,
        updates,
        is_leaf=lambda node: node is None,
    )
