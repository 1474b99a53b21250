"""What the estimators with an inference network share."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self

import jax
import numpy as np
import optax
from jaxtyping import Array, DTypeLike, Float, PRNGKeyArray, PyTree
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from vpng import optimizers
from vpng.checks import finite_scalar, positive_integer
from vpng.errors import expected
from vpng.models.early_stopping import train
from vpng.models.saved import SavedModel, leaves_by_name, tree_from_names
from vpng.numerics.jax_settings import jax_setting
from vpng.objective import ELBO
from vpng.problem import Parameters
from vpng.problems.amortised import AmortisedNormal
from vpng.training import Loop, current, iterate_averaged
from vpng.training.loop import Readout
from vpng.training.mean_elbo import mean_elbo

_ROWS_AT_A_TIME = 2048
_WORTH_AVERAGING = 50
_MOST_BYTES_KEPT = 2**24
_NOT_IN_A_PROGRAM = {
    "max_epochs": 1,
    "patience": 1,
    "validation_fraction": 0.0,
    "random_state": None,
    "progress": False,
}


OfBatch = Callable[[AmortisedNormal, Parameters, PyTree], Array]


class Setup(NamedTuple):
    """A problem to train, the same to measure with, and parameters to start from."""

    problem: AmortisedNormal
    measured: AmortisedNormal
    parameters: Parameters


class AmortisedEstimator(
    SavedModel, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Latents from a network, trained with VPNG, stopped early on rows held out.

    A subclass gives the constructor, `_rows`, `_setup` and `_batch`.
    """

    n_components: int
    hidden: Sequence[int]
    kl_weight: float
    weight_decay: float
    learning_rate: float | None
    batch_size: int
    max_epochs: int
    validation_fraction: float
    patience: int
    random_state: Any
    progress: bool

    @abstractmethod
    def _rows(self, X: Any, *, reset: bool) -> np.ndarray:
        """X checked, as one host array."""

    @abstractmethod
    def _setup(self, rng_key: PRNGKeyArray, num_data: int) -> Setup:
        """The problem for `num_data` rows of `n_features_in_` columns."""

    @abstractmethod
    def _batch(self, rows: np.ndarray) -> PyTree:
        """Rows as the problem's batch."""

    def _begin(self, parameters: Parameters, rows: np.ndarray) -> Parameters:
        """Where training starts, from parameters that were drawn without a look at the rows."""
        return parameters

    def _max_rank(self, num_data: int) -> int:
        """Most directions of the rows that the optimizer moves in."""
        return 150

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train from the start.

        Args:
            X: one datum a row.
            y: not used.
        """
        rows = self._rows(X, reset=True)
        return self._train(rows, None, self.max_epochs)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """One more pass, over these rows, from where the model is; no rows are held out.

        Args:
            X: one datum a row.
            y: not used.
        """
        fitted = hasattr(self, "parameters_")
        rows = self._rows(X, reset=not fitted)
        return self._train(rows, self.parameters_ if fitted else None, 1, held_out=0.0)

    def _train(
        self,
        rows: np.ndarray,
        start: Parameters | None,
        max_epochs: int,
        held_out: float | None = None,
    ) -> Self:
        self._check_settings()
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        init_key, run_key = jax.random.split(jax.random.key(seed))
        share = self.validation_fraction if held_out is None else held_out
        order = np.random.default_rng(seed).permutation(len(rows))
        size = min(round(share * len(rows)), len(rows) - 1)
        kept = rows[np.sort(order[size:])]
        problem, measured, parameters = self._setup(init_key, len(kept))
        parameters = self._begin(parameters, kept) if start is None else start
        data = self._batch(kept)
        steps = max_epochs * self._steps_per_epoch(len(kept))
        metrics = {}
        if size:
            validation = self._batch(rows[order[:size]])
            metrics["validation_elbo"] = partial(_mean_elbo, measured, validation)
        optimizer = self._optimizer(problem, parameters, data)
        readout = iterate_averaged if steps >= _WORTH_AVERAGING else current
        key = self._program_key()
        if key is None or kept.nbytes > _MOST_BYTES_KEPT:
            loop = self._loop(problem, parameters, data, optimizer, readout)
        else:
            double = jax_setting("jax_enable_x64")
            loop = _compiled(type(self), key, kept.shape, kept.dtype, readout, double)
        result = train(
            loop.on(data, metrics=metrics),
            loop.init(parameters, run_key, optimizer),
            num_steps=steps,
            metric="validation_elbo" if size else None,
            readout=readout,
            patience=self.patience,
            progress=self.progress,
        )
        self.parameters_, self.n_iter_ = result.parameters, result.epochs
        self.history_ = result.history.to_dict()
        return self

    def _steps_per_epoch(self, num_data: int) -> int:
        return max(num_data // self.batch_size, 1)

    def _optimizer(
        self, problem: AmortisedNormal, parameters: Parameters, data: PyTree
    ) -> optax.GradientTransformation:
        optimizer = optimizers.network_vpng(
            problem,
            parameters,
            data,
            self.learning_rate,
            batch_size=min(self.batch_size, problem.num_data),
            max_rank=self._max_rank(problem.num_data),
        )
        if self.weight_decay:
            optimizer = optax.chain(optimizer, optax.add_decayed_weights(-self.weight_decay))
        return optimizer

    def _loop(
        self,
        problem: AmortisedNormal,
        parameters: Parameters,
        data: PyTree,
        optimizer: optax.GradientTransformation,
        readout: Readout,
    ) -> Loop:
        return Loop(
            problem,
            parameters,
            data,
            optimizer,
            objective=ELBO(1, kl_weight=self.kl_weight),
            batch_size=min(self.batch_size, problem.num_data),
            record_every=self._steps_per_epoch(problem.num_data),
            readout=readout,
        )

    def _program_key(self) -> tuple[tuple[str, Any], ...] | None:
        """The settings that a compiled program depends on; None if they cannot be compared."""
        own = {**self.get_params(deep=False), **self._chosen_settings()}
        key = tuple({**own, "hidden": tuple(self.hidden), **_NOT_IN_A_PROGRAM}.items())
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _chosen_settings(self) -> dict[str, Any]:
        """Settings that were left to the data."""
        return {}

    def _check_settings(self) -> None:
        for name in ("n_components", "batch_size", "max_epochs", "patience"):
            positive_integer(name, getattr(self, name))
        for name in ("kl_weight", "weight_decay"):
            finite_scalar(name, getattr(self, name), minimum=0.0, strict=False)
        if not 0.0 <= self.validation_fraction < 1.0:
            wanted = "a part of the rows in [0, 1)"
            raise expected("validation_fraction", wanted, self.validation_fraction)

    def transform(self, X: Any) -> Float[np.ndarray, "n k"]:
        """The mean of q(z | x) for each row: rows that were not there in training are welcome."""
        check_is_fitted(self)
        return self._by_parts(_means, self._rows(X, reset=False))

    def score(self, X: Any, y: Any = None) -> float:
        """The ELBO per row, with fixed draws; higher is better.

        Args:
            X: one datum a row.
            y: not used.
        """
        check_is_fitted(self)
        return float(self._by_parts(_elbos, self._rows(X, reset=False)).mean())

    def _fitted(self) -> tuple[AmortisedNormal, Parameters]:
        check_is_fitted(self)
        return self._setup(jax.random.key(0), 1).measured, self.parameters_

    def _by_parts(self, function: OfBatch, rows: np.ndarray) -> np.ndarray:
        """A compiled function of the model and a batch, a few rows at a time."""
        problem, parameters = self._fitted()
        size = min(_ROWS_AT_A_TIME, len(rows))
        parts = []
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            filled = np.pad(part, [(0, size - len(part)), (0, 0)])
            found = function(problem, parameters, self._batch(filled))
            parts.append(np.asarray(found)[: len(part)])
        return np.concatenate(parts)

    @property
    def _n_features_out(self) -> int:
        return self.n_components

    def _fitted_arrays(self) -> dict[str, np.ndarray]:
        width = {"n_features_in": np.array(self.n_features_in_)}
        return {**width, **leaves_by_name("parameters", self.parameters_)}

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        self._check_settings()
        self._prepare(positive_integer("n_features_in", int(arrays["n_features_in"])))
        shapes = jax.eval_shape(lambda key: self._setup(key, 1).parameters, jax.random.key(0))
        self.parameters_ = tree_from_names("parameters", arrays, shapes)

    def _prepare(self, width: int) -> None:
        """What `_setup` needs besides the settings, for rows of this width."""
        self.n_features_in_ = width

    def _validated(self, X: Any, reset: bool, **options: Any) -> Any:
        return validate_data(self, X, reset=reset, dtype=np.float32, **options)


@lru_cache(maxsize=8)
def _compiled(
    kind: type[AmortisedEstimator],
    settings: tuple[tuple[str, Any], ...],
    shape: tuple[int, int],
    dtype: DTypeLike,
    readout: Readout,
    _double: bool,
) -> Loop:
    """Training for one setting and shape of rows, compiled once: later fits of it only run.

    `_double` is JAX's own setting, which a program depends on.
    """
    model = kind(**dict(settings))
    model._prepare(shape[1])
    problem, _, parameters = model._setup(jax.random.key(0), shape[0])
    data = model._batch(np.zeros(shape, dtype))
    optimizer = model._optimizer(problem, parameters, data)
    return model._loop(problem, parameters, data, optimizer, readout)


@jax.jit
def _mean_elbo(
    problem: AmortisedNormal, data: PyTree, parameters: Parameters, rng_key: PRNGKeyArray
) -> Float[Array, ""]:
    return mean_elbo(problem, data, 4)(parameters, rng_key)


@jax.jit
def _means(problem: AmortisedNormal, parameters: Parameters, batch: PyTree) -> Float[Array, "B k"]:
    return problem.encode(parameters.variational, batch)[0]


@jax.jit
def _elbos(problem: AmortisedNormal, parameters: Parameters, batch: PyTree) -> Float[Array, " B"]:
    def one(key: PRNGKeyArray) -> Array:
        noise = problem.noise(key, batch)
        latent, divergence = problem.latent_and_kl(parameters, noise, batch)
        likelihood = problem.likelihood(parameters.model, latent, batch)
        return likelihood.log_prob(problem.observed(batch)) - divergence

    return jax.vmap(one)(jax.random.split(jax.random.key(0), 4)).mean(axis=0)
