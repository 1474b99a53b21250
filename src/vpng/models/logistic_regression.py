"""Bayesian logistic regression as an estimator."""

from functools import lru_cache
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import DTypeLike, Float
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from vpng import optimizers
from vpng.checks import damping_value, finite_scalar, positive_integer
from vpng.errors import expected
from vpng.models.corrected import corrected
from vpng.models.saved import SavedModel
from vpng.numerics.jax_settings import jax_setting
from vpng.objective import ELBO
from vpng.problems import Labelled, LogisticRegression
from vpng.training import Loop


class BayesianLogisticRegression(SavedModel, ClassifierMixin, BaseEstimator):
    """Two classes, weights w ~ N(0, prior_scale^2 I), a normal posterior.

    A factorised approximation is fitted, and its covariance corrected by linear response.
    Probabilities are averages over the posterior, so that they know what the data do not say.

    Args:
        prior_scale: the standard deviation of every weight before the data.
        fit_intercept: whether there is a weight for a constant.
        num_steps: steps of VPNG, on all data.
        learning_rate: the first step size of Adam on top of VPNG; it decays to a twentieth.
        damping: added to the predictive Fisher.
        num_particles: draws of the weights for a step.
        random_state: a seed, None, or NumPy's RandomState.
        progress: whether to show a progress bar.

    Attributes:
        classes_: the two labels.
        coef_: the posterior means, `[1, n_features_in_]`.
        intercept_: that of the constant, `[1]`.
        coef_covariance_: the posterior covariance of the weights, the constant's last.
        coef_scale_: their posterior standard deviations.
        history_: the loss during training.
    """

    def __init__(
        self,
        *,
        prior_scale: float = 1.0,
        fit_intercept: bool = True,
        num_steps: int = 500,
        learning_rate: float = 0.1,
        damping: float = 1e-2,
        num_particles: int = 10,
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.prior_scale = prior_scale
        self.fit_intercept = fit_intercept
        self.num_steps = num_steps
        self.learning_rate = learning_rate
        self.damping = damping
        self.num_particles = num_particles
        self.random_state = random_state
        self.progress = progress

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Find the posterior given covariates X and one of two labels a row, y."""
        X, y = validate_data(self, X, y, dtype=np.float32)
        check_classification_targets(y)
        kind = type_of_target(y)
        if kind != "binary":
            # scikit-learn's own words, which its checks look for.
            raise ValueError(f"Only binary classification is supported. The type is {kind}.")
        for name in ("num_steps", "num_particles"):
            positive_integer(name, getattr(self, name))
        finite_scalar("learning_rate", self.learning_rate, minimum=0.0, strict=True)
        damping_value(self.damping)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) != 2:
            raise ValueError(f"y: expected two classes, got one class, {self.classes_[0]!r}.")
        problem, data = LogisticRegression.create(
            X, labels, prior_scale=self.prior_scale, intercept=self.fit_intercept
        )
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        init_key, run_key = jax.random.split(jax.random.key(seed))
        loop = _compiled(
            *data.covariates.shape,
            float(self.prior_scale),
            self.num_steps,
            float(self.learning_rate),
            float(self.damping),
            self.num_particles,
            data.covariates.dtype,
            jax_setting("jax_enable_x64"),
        ).on(data)
        start = loop.init(problem.init(init_key, data.covariates.shape[1]), run_key)
        result = loop.run(start, self.num_steps, progress=self.progress)
        found = result.params.variational
        own = np.asarray(found.loc), np.exp(np.asarray(found.log_scale))
        self._adopt(*corrected(problem, data, *own))
        self.history_ = result.history.to_dict()
        return self

    def decision_function(self, X: Any) -> Float[np.ndarray, " n"]:
        """The log-odds of the second class at the posterior mean."""
        return self._logits(X)[0]

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n 2"]:
        """The posterior predictive probability of each class.

        x . w is normal under q, and the average of its sigmoid is a Gauss-Hermite quadrature.
        """
        mean, deviation = self._logits(X)
        nodes, weights = np.polynomial.hermite_e.hermegauss(32)
        values = expit(mean[:, None] + deviation[:, None] * nodes)
        second = values @ weights / weights.sum()
        return np.stack([1.0 - second, second], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class of each row."""
        second = self.decision_function(X) > 0
        return self.classes_[second.astype(int)]

    def _logits(self, X: Any) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Mean and standard deviation of x . w under the posterior."""
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, dtype=np.float32, reset=False), np.float64)
        rows = np.column_stack([X, np.ones(len(X))]) if self.fit_intercept else X
        variance = np.sum(rows @ self.coef_covariance_.astype(np.float64) * rows, axis=1)
        return X @ self.coef_[0] + self.intercept_[0], np.sqrt(variance)

    def _adopt(self, loc: np.ndarray, covariance: np.ndarray) -> None:
        width = self.n_features_in_
        self.coef_, self.coef_covariance_ = loc[None, :width], covariance
        self.coef_scale_ = np.sqrt(np.diagonal(covariance))
        self.intercept_ = loc[width:] if self.fit_intercept else np.zeros(1, loc.dtype)

    def _fitted_arrays(self) -> dict[str, np.ndarray]:
        loc = np.concatenate([self.coef_[0], self.intercept_[: int(self.fit_intercept)]])
        labels = self.classes_
        if labels.dtype == object:
            labels = np.array([str(label) for label in labels])
        return {"loc": loc, "covariance": self.coef_covariance_, "classes": labels}

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        loc, covariance, self.classes_ = arrays["loc"], arrays["covariance"], arrays["classes"]
        if loc.ndim != 1 or covariance.shape != 2 * loc.shape or self.classes_.shape != (2,):
            wanted = "means, their covariance and two classes"
            got = f"{loc.shape}, {covariance.shape}, {self.classes_.shape}"
            raise expected("arrays", wanted, got)
        if not (np.isfinite(loc).all() and np.isfinite(covariance).all()):
            raise expected("arrays", "finite means and covariances", "NaN or infinity among them")
        if not (np.diagonal(covariance) > 0).all():
            raise expected("arrays", "variances above zero", "others")
        self.n_features_in_ = len(loc) - int(self.fit_intercept)
        self._adopt(loc, covariance)


@lru_cache(maxsize=16)
def _compiled(
    num_data: int,
    num_weights: int,
    prior_scale: float,
    num_steps: int,
    learning_rate: float,
    damping: float,
    num_particles: int,
    dtype: DTypeLike,
    _double: bool,
) -> Loop:
    """Training for one setting and shape of data, compiled once: later fits of it only run.

    `_double` is JAX's own setting, which a program depends on.
    """
    problem = LogisticRegression(num_data=num_data, prior_scale=prior_scale)
    parameters = problem.init(jax.random.key(0), num_weights)
    data = Labelled(jnp.zeros((num_data, num_weights), dtype), jnp.zeros(num_data, dtype))
    rate = optax.linear_schedule(learning_rate, learning_rate / 20, num_steps)
    optimizer = optimizers.vpng(problem, rate, rule=optax.scale_by_adam(), damping=damping)
    return Loop(problem, parameters, data, optimizer, objective=ELBO(num_particles))
