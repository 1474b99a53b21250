"""Which parameter belongs to which block: the static result of looking at a traced function."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from vpng.errors import InputError
from vpng.numerics.cost import SHORT_SOLVE, largest_formed
from vpng.numerics.trees import path_name

DENSE_LIMIT = largest_formed(SHORT_SOLVE)
"""Most parameters in no layer whose block is factorised, as it is at every refresh."""


@dataclass(frozen=True)
class Layer:
    """A weight, and perhaps a bias, whose block of the Fisher is a Kronecker product A (x) G.

    As a matrix the layer is V [n, m]: the weight as [in, out], below it the bias as one more row
    that multiplies the constant 1 (the homogeneous coordinate), so n is in or in + 1.

    Attributes:
        weight: path of the weight among the parameters; also the layer's name.
        bias: path of the bias, None if there is none.
        kind: what multiplies the weight, in words.
        shape: of the weight.
        permutation: the order of the weight's axes in which it is read as [in, out].
        size: (in, out).
        bias_shape: of the bias.
        num_uses: how many products share the weight.
        sources: the layers whose outputs reach this one through no other layer.
    """

    weight: str
    bias: str | None
    kind: str
    shape: tuple[int, ...]
    permutation: tuple[int, ...]
    size: tuple[int, int]
    bias_shape: tuple[int, ...]
    num_uses: int
    sources: tuple[str, ...]

    @property
    def num_inputs(self) -> int:
        """n, the inputs and the homogeneous coordinate."""
        return self.size[0] + (self.bias is not None)

    @property
    def num_outputs(self) -> int:
        """M."""
        return self.size[1]

    def matrix(self, leaves: dict[str, Array]) -> Float[Array, "n m"]:
        """V, from the leaves of a tree like the parameters by path."""
        weight = leaves[self.weight].transpose(self.permutation).reshape(self.size)
        if self.bias is None:
            return weight
        return jnp.concatenate([weight, leaves[self.bias].reshape(1, -1)])

    def leaves(self, matrix: Float[Array, "n m"]) -> dict[str, Array]:
        """The inverse of `matrix`."""
        transposed = tuple(self.shape[axis] for axis in self.permutation)
        back = tuple(int(axis) for axis in np.argsort(self.permutation))
        found = {self.weight: matrix[: self.size[0]].reshape(transposed).transpose(back)}
        if self.bias is not None:
            found[self.bias] = matrix[self.size[0]].reshape(self.bias_shape)
        return found


@dataclass(frozen=True)
class Other:
    """A parameter in no layer.

    Attributes:
        path: of the parameter.
        shape: of the parameter.
        reason: why it is in no layer.
        is_read: whether the rows depend on it at all; if not, its curvature is zero.
    """

    path: str
    shape: tuple[int, ...]
    reason: str
    is_read: bool = True

    @property
    def size(self) -> int:
        """Number of entries."""
        return prod(self.shape)


@dataclass(frozen=True)
class Structure:
    """The blocks of a curvature: layers, one dense block for small others, a diagonal for the rest.

    Attributes:
        layers: in the order in which the function evaluates them.
        others: parameters in no layer.
        outputs: the layers whose outputs reach the rows through no other layer.
        dense_limit: most entries of the dense block; the smallest of the others go there first.
    """

    layers: tuple[Layer, ...]
    others: tuple[Other, ...]
    outputs: tuple[str, ...]
    dense_limit: int = DENSE_LIMIT

    @property
    def dense(self) -> frozenset[str]:
        """Paths of the parameters that share the dense block."""
        chosen, total = [], 0
        for other in sorted(self.others, key=lambda other: other.size):
            if not other.is_read:
                continue
            total += other.size
            if total > self.dense_limit:
                break
            chosen.append(other.path)
        return frozenset(chosen)

    @property
    def read(self) -> frozenset[str]:
        """Paths of the parameters in no layer that the rows depend on."""
        return frozenset(other.path for other in self.others if other.is_read)

    @property
    def diagonal(self) -> frozenset[str]:
        """Paths of the parameters that keep only the diagonal."""
        return frozenset(other.path for other in self.others) - self.dense

    def restricted(self, parameters: PyTree) -> "Structure":
        """The structure when only `parameters` are active and the rest, None there, is fixed."""
        active = by_path(parameters).keys()
        sources = {layer.weight: layer.sources for layer in self.layers}
        layers, others = [], [other for other in self.others if other.path in active]
        for layer in self.layers:
            bias = layer.bias if layer.bias in active else None
            if layer.weight in active:
                kept = visible(layer.sources, sources, active)
                layers.append(replace(layer, bias=bias, sources=kept))
            elif bias is not None:
                others.append(Other(bias, layer.bias_shape, "its weight is held fixed"))
        outputs = visible(self.outputs, sources, active)
        return Structure(tuple(layers), tuple(others), outputs, self.dense_limit)

    def check_covers(self, parameters: PyTree) -> None:
        """Refuse parameters that the structure was not found for."""
        known = {other.path for other in self.others}
        known.update(path for layer in self.layers for path in (layer.weight, layer.bias) if path)
        unknown = sorted(by_path(parameters).keys() - known)
        if unknown:
            raise InputError(
                "parameters: expected those that the structure was discovered with, got "
                f"{', '.join(unknown)} besides; call vpng.kronecker.discover with these parameters."
            )

    @property
    def is_chain(self) -> bool:
        """Whether all layers are dense and follow each other one by one."""
        return self._broken_link() is None

    def check_chain(self) -> None:
        """Refuse layers that do not follow each other one by one.

        Raises:
            InputError: naming the layer where the chain branches.
        """
        broken = self._broken_link()
        if broken is not None:
            raise InputError(
                f"structure: expected dense layers in a chain, got {broken}; use Kronecker, which "
                "takes any network."
            )

    def _broken_link(self) -> str | None:
        """The first thing that keeps the layers from being a chain, in words."""
        wanted: tuple[str, ...] = ()
        for layer in self.layers:
            if layer.num_uses > 1:
                return f"{layer.weight}, which is used {layer.num_uses} times"
            if layer.kind != "dense":
                return f"{layer.weight}, which is a {layer.kind}"
            if layer.sources != wanted:
                return (
                    f"a branch at {layer.weight}, which follows {_listed(layer.sources)} where a "
                    f"chain has {_listed(wanted)}"
                )
            wanted = (layer.weight,)
        if self.layers and self.outputs != wanted:
            return (
                f"a branch at the rows, which follow {_listed(self.outputs)} where a chain has "
                f"{_listed(wanted)}"
            )
        return None

    def explain(self) -> str:
        """A table: each parameter, its block and why it is there."""
        rows = [("parameter", "shape", "block", "why")]
        for layer in self.layers:
            into, out = layer.size
            shared = f", shared by {layer.num_uses} products" if layer.num_uses > 1 else ""
            block = f"({layer.num_inputs}) x ({layer.num_outputs})"
            rows.append(
                (layer.weight, str(layer.shape), block, f"{layer.kind} {into} -> {out}{shared}")
            )
            if layer.bias is not None:
                why = f"bias of {layer.weight}"
                rows.append((layer.bias, str(layer.bias_shape), "  same", why))
        total = sum(other.size for other in self.others if other.path in self.dense)
        for other in self.others:
            block = f"dense {total}" if other.path in self.dense else f"diagonal {other.size}"
            block = block if other.is_read else "none"
            rows.append((other.path, str(other.shape), block, other.reason))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(row[:3], widths, strict=True)), row[3]])
            for row in rows
        ]
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def by_path(tree: PyTree) -> dict[str, Any]:
    """The leaves of `tree` by their paths, in its order."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path): leaf for path, leaf in leaves}


def with_leaves(tree: PyTree, leaves: dict[str, Array]) -> PyTree:
    """`tree` with the leaves of these paths, None elsewhere."""
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves.get(path_name(path)), tree)


def visible(
    names: Iterable[str], sources: dict[str, tuple[str, ...]], kept: Iterable[str]
) -> tuple[str, ...]:
    """`names` with each that is not `kept` replaced by what is visible through it."""
    kept, seen, waiting = set(kept), set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(() if name in kept else sources[name])
    return tuple(sorted(seen & kept))


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(names) if names else "no layer"
