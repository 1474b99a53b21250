"""What was not finite, by name: a few flags that travel through compiled programs."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree

from vpng.numerics.trees import all_finite


class Findings(eqx.Module):
    """Named parts of a computation, and which of them were not finite.

    Attributes:
        flags: one for each part; the steps of a run may come before.
        parts: what the parts are called.
    """

    flags: Bool[Array, "... parts"]
    parts: tuple[str, ...] = eqx.field(static=True)

    @classmethod
    def none(cls, parts: Sequence[str]) -> "Findings":
        """Nothing to report."""
        return cls(jnp.zeros((len(parts),), bool), tuple(parts))

    @classmethod
    def of(cls, parts: Sequence[str], flags: Sequence[Bool[Array, ""]]) -> "Findings":
        """One flag for each part."""
        stacked = jnp.stack(flags) if flags else jnp.zeros((0,), bool)
        return cls(stacked, tuple(parts))

    @classmethod
    def in_tree(cls, title: str, tree: PyTree) -> "Findings":
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


def joined(findings: Sequence[Findings]) -> Findings:
    """All parts one after the other."""
    flags = [jnp.zeros((0,), bool), *(found.flags for found in findings)]
    return Findings(jnp.concatenate(flags), sum((found.parts for found in findings), ()))


def findings_in(tree: PyTree) -> Findings:
    """The findings that the parts of an optimizer left in its state."""
    nodes = jax.tree.leaves(tree, is_leaf=_is_findings)
    return joined([node for node in nodes if _is_findings(node)])


def is_floating(leaf: Any) -> bool:
    """Whether `leaf` can be not finite at all."""
    return jnp.issubdtype(jnp.result_type(leaf), jnp.floating)


def path_name(path: tuple[Any, ...]) -> str:
    """A leaf's path as one would write it in Python."""
    return jax.tree_util.keystr(path).lstrip(".")


def _is_findings(node: Any) -> bool:
    return isinstance(node, Findings)
