"""How a loss maps over its particles: NumPyro's own ways, and both shapes of a map of one's own."""

import copy
import inspect
from collections.abc import Callable

import jax
from jaxtyping import PyTree
from numpyro.infer.elbo import ELBO

Map = Callable[[Callable[[PyTree], PyTree], PyTree], PyTree]


def with_either_map(loss: ELBO) -> ELBO:
    """The loss, whose map may take `(function, keys)` or return a function of the keys."""
    if not callable(loss.vectorize_particles):
        return loss
    same = copy.copy(loss)
    same.vectorize_particles_fn = either_map(loss.vectorize_particles)
    return same


def either_map(given: Callable) -> Map:
    """A map that takes the function and the keys, from one of either shape."""

    def mapped(function: Callable[[PyTree], PyTree], keys: PyTree) -> PyTree:
        return given(function, keys) if _takes_keys(given) else given(function)(keys)

    return mapped


def over_all(one: Callable[[PyTree], PyTree], draws: PyTree, how: Map) -> PyTree:
    """What `one` makes of every draw; a single one needs no map, as in NumPyro."""
    if jax.tree.leaves(draws)[0].shape[0] > 1:
        return how(one, draws)
    return jax.tree.map(lambda leaf: leaf[None], one(jax.tree.map(lambda leaf: leaf[0], draws)))


def _takes_keys(given: Callable) -> bool:
    """Whether a map wants the keys beside the function: two arguments without a default."""
    # Those of JAX take options in second place, and return a function.
    if given in (jax.pmap, jax.vmap):
        return False
    try:
        parameters = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in positional and p.default is p.empty]
    return len(needed) > 1 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
