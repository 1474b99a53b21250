"""Poisson matrix factorisation as an estimator: a recommender that needs no retraining for users
it has not seen.
"""

from functools import partial
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from vpng.checks import finite_scalar, positive_integer
from vpng.errors import expected
from vpng.models.amortised import AmortisedEstimator, Setup
from vpng.problems import (
    Counted,
    MatrixFactorization,
    Ratings,
    counted,
    expected_counts,
    leading_directions,
    rating_matrix,
)

_MOST_BYTES = 2**33
_expected_counts = jax.jit(expected_counts, static_argnames="num_steps")


class Recommendations(NamedTuple):
    """The best items of each user, best first.

    Attributes:
        items: columns of the matrix; -1 where a user has no more items to be recommended.
        scores: the expected counts; -inf there.
    """

    items: Int[np.ndarray, "n k"]
    scores: Float[np.ndarray, "n k"]


class PoissonFactorization(AmortisedEstimator):
    """Counts of items by users: beta_u ~ N(0, I), R_ui ~ Poisson(softplus(beta_u . theta_i)).

    A network reads beta_u off the user's row, so that new users are folded in by `transform`,
    `recommend` and `score` without training. Rows are counts or any other non-negative numbers,
    such as ratings; zero means unseen. Dense arrays and SciPy's sparse matrices are taken; in
    memory they are bytes where all entries are whole numbers below 256.

    Args:
        n_components: the length of beta_u.
        hidden: widths of the network's hidden layers.
        refinement: steps from the network's beta_u towards the mode of its posterior, in `predict`
            and `recommend`; a network that saw few users is not yet good at finding it.
        dropout: the chance that the network does not see an entry in a step.
        kl_weight: of the KL term in the training loss; 1 is the ELBO.
        weight_decay: the share by which every step shrinks the weights.
        learning_rate: a number, or None for the optimizer's own decaying step.
        batch_size: users for a step.
        max_epochs: most passes through the users.
        validation_fraction: the share of users held out for early stopping; 0 for none.
        patience: epochs without a better validation ELBO before training ends.
        random_state: a seed, None, or NumPy's RandomState.
        progress: whether to show a progress bar.

    Attributes:
        parameters_: the fitted parameters: the network's and theta.
        components_: theta, `[n_components, n_features_in_]`.
        item_ids_: the items' ids if fitted by `fit_ratings`, else the columns' numbers.
        n_iter_: epochs done.
        history_: loss and validation ELBO after every epoch.
    """

    def __init__(
        self,
        n_components: int = 50,
        *,
        hidden: tuple[int, ...] = (300, 300),
        refinement: int = 0,
        dropout: float = 0.5,
        kl_weight: float = 1.0,
        weight_decay: float = 0.0,
        learning_rate: float | None = None,
        batch_size: int = 128,
        max_epochs: int = 200,
        validation_fraction: float = 0.1,
        patience: int = 20,
        random_state: Any = None,
        progress: bool = False,
    ) -> None:
        self.n_components = n_components
        self.hidden = hidden
        self.refinement = refinement
        self.dropout = dropout
        self.kl_weight = kl_weight
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.random_state = random_state
        self.progress = progress

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.positive_only = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        super().fit(X)
        self.item_ids_ = np.arange(self.n_features_in_)
        return self

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        super().partial_fit(X)
        if not hasattr(self, "item_ids_"):
            self.item_ids_ = np.arange(self.n_features_in_)
        return self

    def fit_ratings(self, ratings: Ratings, *, min_ratings: int = 1) -> Self:
        """`fit` to the paper's matrix of ratings, and keep the items' ids.

        Args:
            ratings: from `vpng.paper.datasets`.
            min_ratings: what an item needs to be in the model.
        """
        matrix = rating_matrix(ratings, min_ratings=min_ratings)
        self.fit(matrix.counts)
        self.item_ids_ = matrix.items
        return self

    def rows_of(self, ratings: Ratings) -> tuple[np.ndarray, Int[np.ndarray, " n"]]:
        """The rows of R of everybody in `ratings`, in this model's columns, and the users' ids.

        Items that the model does not know are left out; users left with nothing keep a row of
        zeros.
        """
        users, rows = np.unique(ratings.users, return_inverse=True)
        order = np.argsort(self.item_ids_)
        known = np.isin(ratings.items, self.item_ids_)
        places = np.searchsorted(self.item_ids_, ratings.items[known], sorter=order)
        matrix = np.zeros((len(users), self.n_features_in_), np.uint8)
        matrix[rows[known], order[places]] = np.asarray(2 * ratings.stars[known] - 1, np.uint8)
        return matrix, users

    @property
    def components_(self) -> Float[np.ndarray, "k m"]:
        """The items' latent vectors, theta."""
        return np.asarray(self.parameters_.model)

    def predict(self, X: Any) -> Float[np.ndarray, "n m"]:
        """The expected counts, softplus(beta_u . theta_i) at the mean of q(beta_u | R_u).

        With `refinement` it is at a point closer to the mode of the posterior.
        """
        check_is_fitted(self)
        return self._rates(self._rows(X, reset=False))

    def recommend(
        self, user_rows: Any, n: int = 10, *, exclude_seen: bool = True
    ) -> Recommendations:
        """The n items with the highest expected counts for each user.

        Args:
            user_rows: rows of counts, of users known or new.
            n: items for each user.
            exclude_seen: whether items with a count above zero are left out.

        Raises:
            InputError: for rows or an n that do not fit.
        """
        check_is_fitted(self)
        positive_integer("n", n)
        rows = self._rows(user_rows, reset=False)
        if n > rows.shape[1]:
            raise expected("n", f"at most the {rows.shape[1]} items", n)
        scores = self._rates(rows)
        if exclude_seen:
            scores = np.where(rows > 0, -np.inf, scores)
        return _leading(scores, n)

    def _rates(self, rows: np.ndarray) -> Float[np.ndarray, "n m"]:
        return self._by_parts(partial(_expected_counts, num_steps=self.refinement), rows)

    def similar_items(self, item: int, n: int = 10) -> Recommendations:
        """The n columns whose theta has the largest cosine with that of column `item`.

        Raises:
            InputError: for a column or an n outside the matrix.
        """
        _, parameters = self._fitted()
        positive_integer("n", n)
        theta = np.asarray(parameters.model)
        if not 0 <= item < theta.shape[1] or n >= theta.shape[1]:
            wanted = f"a column below {theta.shape[1]}, and fewer items than that"
            raise expected("item, n", wanted, f"{item}, {n}")
        lengths = np.maximum(np.linalg.norm(theta, axis=0), np.finfo(theta.dtype).tiny)
        cosines = (theta[:, item] @ theta) / (lengths[item] * lengths)
        cosines[item] = -np.inf
        return _leading(cosines[None], n)

    def _rows(self, X: Any, *, reset: bool) -> np.ndarray:
        X = self._validated(X, reset, accept_sparse="csr", ensure_non_negative=True)
        entries = X.data if sparse.issparse(X) else X
        whole = not entries.size or (entries.max() < 256 and (entries == np.floor(entries)).all())
        dtype = np.uint8 if whole else np.float32
        size = X.shape[0] * X.shape[1] * np.dtype(dtype).itemsize
        if size > _MOST_BYTES:
            wanted = f"a matrix that takes at most {_MOST_BYTES:,} bytes"
            raise expected("X", wanted, f"{size:,} for {X.shape}; leave rare items out")
        return X.astype(dtype).toarray() if sparse.issparse(X) else X.astype(dtype)

    def _setup(self, rng_key: PRNGKeyArray, num_data: int) -> Setup:
        problem = MatrixFactorization(
            num_data, self.n_features_in_, self.n_components, dropout=self.dropout
        )
        return Setup(problem, problem.whole(), problem.init(rng_key, hidden=self.hidden))

    def _check_settings(self) -> None:
        super()._check_settings()
        if isinstance(self.refinement, bool) or not isinstance(self.refinement, int):
            raise expected("refinement", "a whole number of at least 0", repr(self.refinement))
        finite_scalar("refinement", self.refinement, minimum=0.0, strict=False)

    def _max_rank(self, num_data: int) -> int:
        return leading_directions(num_data, self.n_features_in_)

    def _batch(self, rows: np.ndarray) -> Counted:
        return counted(rows)

    def _fitted_arrays(self) -> dict[str, np.ndarray]:
        return {**super()._fitted_arrays(), "item_ids": self.item_ids_}

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        super()._restore(arrays)
        self.item_ids_ = arrays["item_ids"]


def _leading(scores: Float[np.ndarray, "n m"], count: int) -> Recommendations:
    """The columns of the `count` largest entries of each row, the lower column first on ties."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    best = np.take_along_axis(scores, order, axis=1)
    return Recommendations(np.where(np.isneginf(best), -1, order), best)
