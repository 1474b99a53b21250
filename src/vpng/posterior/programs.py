"""What is compiled for a posterior: few programs, each small, with the data as arguments."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

from vpng.posterior.batches import over
from vpng.posterior.linear_response import curvature, response_along
from vpng.posterior.mean_field import Density, fit
from vpng.posterior.moves import move
from vpng.runtime.compilation import QUICK

LIGHT = 3_000_000
"""Numbers touched in one evaluation at all draws, below which compiling costs more than running."""


def run(function: Callable, density: Density, *args: Any, batch: int) -> PyTree:
    """`function(density, *args)`, compiled once for each kind of density and shapes.

    Args:
        function: one of this module.
        density: its arrays are arguments of the program.
        *args: arrays.
        batch: how often the density is evaluated side by side.
    """
    arrays, static = eqx.partition(density, eqx.is_array)
    touched = batch * sum(leaf.size for leaf in jax.tree.leaves((arrays, args)))
    light = touched < LIGHT and jax.default_backend() == "cpu"
    leaves, structure = jax.tree.flatten(static)
    return _compiled(function, light)((structure, *leaves), arrays, *args)


@lru_cache
def _compiled(function: Callable, light: bool) -> Callable:
    def program(static: tuple, arrays: Density, *args: Any) -> PyTree:
        structure, *leaves = static
        return function(eqx.combine(arrays, jax.tree.unflatten(structure, leaves)), *args)

    return jax.jit(program, static_argnums=0, compiler_options=QUICK if light else None)


def heights(density: Density, z: PyTree) -> PyTree:
    """Log densities of a batch of latents."""
    return over(density, density)(z)


def constrained(density: Density, z: PyTree) -> PyTree:
    """The values of all sites, for a batch of latents."""
    return over(density, density.constrained)(z)


__all__ = ["constrained", "curvature", "fit", "heights", "move", "response_along", "run"]
