"""What was not finite, by name: a few flags that travel through compiled programs."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from vpng.numerics.trees import all_finite, is_floating, path_name


class NotFinite(eqx.Module):
    """Named parts of a computation, and which of them were not finite.

    Attributes:
        flags: one for each part; the steps of a run may come before.
        parts: what the parts are called.
    """

    flags: Bool[Array, "... parts"]
    parts: tuple[str, ...] = eqx.field(static=True)

    @classmethod
    def none(cls, parts: Sequence[str]) -> "NotFinite":
        """Nothing to report."""
        return cls(jnp.zeros((len(parts),), bool), tuple(parts))

    @classmethod
    def of(cls, parts: Sequence[str], flags: Sequence[Bool[Array, ""]]) -> "NotFinite":
        """One flag for each part."""
        stacked = jnp.stack(flags) if flags else jnp.zeros((0,), bool)
        return cls(stacked, tuple(parts))

    @classmethod
    def in_tree(cls, title: str, tree: PyTree) -> "NotFinite":
        """The floating leaves of `tree`, each called "`title` of" and its path."""
        leaves = [
            (path, leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            if is_floating(leaf)
        ]
        parts = [f"{title} of {path_name(path)}".removesuffix(" of ") for path, _ in leaves]
        return cls.of(parts, [~all_finite(leaf) for _, leaf in leaves])

    @property
    def any(self) -> Bool[Array, ""]:
        """Whether a part was found not finite."""
        return jnp.any(self.flags)

    def named(self, index: tuple[int, ...] = ()) -> list[str]:
        """The parts that were not finite, at one step if there are steps."""
        return [
            part for part, bad in zip(self.parts, np.asarray(self.flags)[index], strict=True) if bad
        ]


def joined(findings: Sequence[NotFinite]) -> NotFinite:
    """All parts one after the other."""
    flags = [jnp.zeros((0,), bool), *(found.flags for found in findings)]
    return NotFinite(jnp.concatenate(flags), sum((found.parts for found in findings), ()))


def not_finite_in(tree: PyTree) -> NotFinite:
    """The findings that the parts of an optimizer left in its state."""
    nodes = jax.tree.leaves(tree, is_leaf=_is_one)
    return joined([node for node in nodes if _is_one(node)])


def _is_one(node: Any) -> bool:
    return isinstance(node, NotFinite)
