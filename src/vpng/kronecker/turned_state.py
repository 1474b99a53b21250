"""The state of an optax rule when its coordinates turn.

With R = Q_new^T Q_old first moments turn with R and second moments with R o R, entry by entry:
without that the moments belong to other coordinates and the run diverges.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jaxtyping import Array, PyTree

from vpng.kronecker.basis import Basis, Coordinates

_MOMENTS: dict[type, Callable[[Any, Callable, Callable], Any]] = {
    optax.ScaleByAdamState: lambda state, first, second: state._replace(
        mu=first(state.mu), nu=second(state.nu)
    ),
    optax.ScaleByRmsState: lambda state, first, second: state._replace(nu=second(state.nu)),
    optax.TraceState: lambda state, first, second: state._replace(trace=first(state.trace)),
}


def _rotation(old: Array | None, new: Array | None) -> Array | None:
    return None if old is None or new is None else old.T @ new


def turned_state(state: PyTree, old: dict[str, Basis], new: dict[str, Basis]) -> PyTree:
    """A rule's state in new coordinates: moments turn, everything else stays."""
    rotations = {
        name: Basis(
            new[name].inputs.T @ basis.inputs,
            _rotation(basis.outputs, new[name].outputs),
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
