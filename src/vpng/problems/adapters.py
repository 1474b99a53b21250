"""Modules of equinox, flax nnx and flax linen as a `Network`.

Each adapter separates the trainable floating arrays from everything else; what is not trainable
(statistics, counters) stays fixed. Dropout and the like must be in inference mode: the randomness
of a problem is its noise alone.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
from jaxtyping import Array, PyTree

from vpng.errors import expected
from vpng.problems.networks import Network

if TYPE_CHECKING:
    from flax import linen, nnx


class _EquinoxApply(eqx.Module):
    fixed: PyTree
    structure: PyTree = eqx.field(static=True)
    batched: bool = eqx.field(static=True)

    def __call__(self, parameters: PyTree, inputs: Array) -> PyTree:
        module = eqx.combine(parameters, self.fixed, self.structure)
        return module(inputs) if self.batched else jax.vmap(module)(inputs)


def from_equinox(module: eqx.Module, *, batched: bool = False) -> Network:
    """An equinox module, which by convention takes one datum.

    Args:
        module: any callable module.
        batched: whether the module takes data along the first axis; otherwise it is vmapped.
    """
    parameters, rest = eqx.partition(module, eqx.is_inexact_array)
    fixed, structure = eqx.partition(rest, eqx.is_array)
    return Network(parameters, _EquinoxApply(fixed, structure, batched))


class _NnxApply(eqx.Module):
    fixed: PyTree
    structure: Any = eqx.field(static=True)

    def __call__(self, parameters: PyTree, inputs: Array) -> PyTree:
        from flax import nnx

        return nnx.merge(self.structure, parameters, self.fixed)(inputs)


def from_nnx(module: "nnx.Module") -> Network:
    """A flax nnx module that takes data along the first axis; its `nnx.Param`s are trained."""
    from flax import nnx

    structure, parameters, fixed = nnx.split(module, nnx.Param, ...)
    return Network(parameters, _NnxApply(fixed, structure))


class _LinenApply(eqx.Module):
    fixed: PyTree
    module: Any = eqx.field(static=True)

    def __call__(self, parameters: PyTree, inputs: Array) -> PyTree:
        return self.module.apply({"params": parameters, **self.fixed}, inputs)


def from_linen(module: "linen.Module", variables: Mapping[str, PyTree]) -> Network:
    """A flax linen module that takes data along the first axis.

    Args:
        module: the module.
        variables: what `module.init` returned; the collection "params" is trained.

    Raises:
        InputError: if there is no collection "params".
    """
    if "params" not in variables:
        raise expected("variables", 'a collection "params"', f"the collections {list(variables)}")
    fixed = {name: value for name, value in variables.items() if name != "params"}
    return Network(variables["params"], _LinenApply(fixed, module))
