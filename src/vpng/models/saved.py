"""Saving and loading for estimators: settings and arrays, checked on the way in."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from jaxtyping import PyTree
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from vpng.errors import expected
from vpng.storage.archive import read_archive, write_archive


class SavedModel(BaseEstimator):
    """An estimator whose fitted state is a few arrays."""

    @abstractmethod
    def _fitted_arrays(self) -> dict[str, np.ndarray]:
        """What `fit` found."""

    @abstractmethod
    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Become fitted again; refuse arrays that do not fit the settings."""

    def _saved_settings(self) -> dict[str, Any]:
        """The constructor's arguments in the terms of JSON."""
        return self.get_params(deep=False)

    @classmethod
    def _from_settings(cls, settings: dict[str, Any]) -> Self:
        """The estimator that `_saved_settings` describes."""
        lists = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
        return cls(**lists)

    def save(self, path: Path | str) -> Path:
        """Write the fitted model to one file, whole or not at all; no pickle inside.

        Raises:
            InputError: for a folder that cannot be written to, or settings that are no plain data.
        """
        check_is_fitted(self)
        settings = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in self._saved_settings().items()
        }
        if isinstance(settings.get("random_state"), np.random.RandomState):
            raise expected("random_state", "an int or None in a model that is saved", "a generator")
        return write_archive(Path(path), type(self).__name__, settings, self._fitted_arrays())

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """A model that `save` wrote.

        Raises:
            InputError: for a file that is damaged, foreign, of another kind or of a later version.
        """
        settings, arrays = read_archive(Path(path), cls.__name__)
        try:
            model = cls._from_settings(settings)
            model._restore(arrays)
        except (KeyError, TypeError) as error:
            raise expected(str(path), f"what a {cls.__name__} saves", f"no {error}") from error
        return model


def leaves_by_name(prefix: str, tree: PyTree) -> dict[str, np.ndarray]:
    """The leaves of a pytree under their paths."""
    return {
        prefix + jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def tree_from_names(prefix: str, arrays: dict[str, np.ndarray], shapes: PyTree) -> PyTree:
    """The pytree that `leaves_by_name` took apart, checked against `shapes`."""
    paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
    leaves = []
    for path, shape in paths:
        name = prefix + jax.tree_util.keystr(path)
        array = arrays[name]
        if array.shape != shape.shape or not np.isfinite(array).all():
            raise expected(name, f"finite numbers of shape {shape.shape}", f"shape {array.shape}")
        leaves.append(jax.numpy.asarray(array, shape.dtype))
    return jax.tree.unflatten(structure, leaves)
