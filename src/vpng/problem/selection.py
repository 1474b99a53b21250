"""Which of the parameters a transformation acts on, the others held fixed."""

from typing import NamedTuple

import equinox as eqx
import jax
import optax
from jaxtyping import PyTree

from vpng.errors import InputError
from vpng.problem.base import Parameters


def _is_masked(node: object) -> bool:
    return isinstance(node, optax.MaskedNode)


def unmasked(tree: PyTree) -> PyTree:
    """`tree` with None, the empty pytree, for every leaf that optax has masked."""
    return jax.tree.map(lambda node: None if _is_masked(node) else node, tree, is_leaf=_is_masked)


def variational_part(tree: Parameters) -> Parameters:
    """`tree` with None for every model parameter."""
    return tree._replace(model=jax.tree.map(lambda _: None, tree.model))


class Selection(NamedTuple):
    """A split of the full parameters into active ones and fixed ones, None filling the gaps."""

    active: Parameters
    fixed: Parameters

    @classmethod
    def of(
        cls, active: Parameters, params: Parameters, full_params: Parameters | None
    ) -> "Selection":
        """The split that has `active` on one side.

        Args:
            active: the active parameters, None elsewhere.
            params: what optax passed, possibly masked.
            full_params: the unmasked parameters, needed only if `params` is masked.

        Raises:
            InputError: if parameters are masked and `full_params` is missing.
        """
        if any(map(_is_masked, jax.tree.leaves(params, is_leaf=_is_masked))):
            if full_params is None:
                raise InputError(
                    "full_params: expected all parameters, since optax.masked or "
                    "optax.multi_transform hides some of them here, got None. "
                    "Call update(..., full_params=params); vpng.fit does."
                )
            params = full_params
        is_gap = lambda node: node is None
        fixed = jax.tree.map(
            lambda part, whole: whole if part is None else None, active, params, is_leaf=is_gap
        )
        return cls(active, fixed)

    def embed(self, active: Parameters) -> Parameters:
        """The full parameters with `active` in their place."""
        return eqx.combine(active, self.fixed)

    def extract(self, tree: Parameters) -> Parameters:
        """The active part of a tree like the full parameters."""
        is_gap = lambda node: node is None
        return jax.tree.map(
            lambda part, whole: None if part is None else whole, self.active, tree, is_leaf=is_gap
        )
