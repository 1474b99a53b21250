"""A function of one point at many: side by side, or one after the other.

Side by side, all points have their own copy of what is computed from the data, so that of many data
only few points go together. On a CPU a solve with a batch of matrices shares its work out to the
threads that run the program. Two of them at once wait for each other for ever where threads are few
(jaxlib 0.10). The same matrices one after the other cost no more.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, PyTree

from vpng.numerics.derivatives import primitives

SOLVES = {"cholesky", "eig", "eigh", "geqrf", "householder_product", "lu", "qr", "schur", "svd"}
SOLVES |= {"triangular_solve", "tridiagonal_solve"}


MOST_NUMBERS = 2**28
"""Of the data times the points that go side by side."""
FEWEST = 8


def solves(program: Any) -> bool:
    """Whether a traced program factorises matrices or solves with them."""
    return not SOLVES.isdisjoint(primitives(program))


def over(
    density: Callable, function: Callable[[Float[Array, " P"]], PyTree]
) -> Callable[[Float[Array, "S P"]], PyTree]:
    """The function at every point of a batch, as is best for a density."""
    data = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(density, eqx.is_array)))
    together = max(FEWEST, MOST_NUMBERS // max(data, 1))

    def call(points: Float[Array, "S P"]) -> PyTree:
        if getattr(density, "one_by_one", False):
            return jax.lax.map(function, points)
        if len(points) > together:
            return jax.lax.map(function, points, batch_size=together)
        return jax.vmap(function)(points)

    return call
