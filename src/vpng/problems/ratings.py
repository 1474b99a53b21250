"""The paper's preparation of ratings: a matrix of counts, and users split into train and test."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from vpng.checks import positive_integer
from vpng.errors import expected


class Ratings(NamedTuple):
    """One rating an entry.

    Attributes:
        users: the users' ids.
        items: the items' ids.
        stars: 0.5, 1.0, ..., 5.0.
    """

    users: Int[np.ndarray, " r"]
    items: Int[np.ndarray, " r"]
    stars: Float[np.ndarray, " r"]

    def __len__(self) -> int:
        return len(self.users)


class RatingMatrix(NamedTuple):
    """R with a row for each user and a column for each item, in bytes.

    Attributes:
        counts: R_ui = 2 stars - 1, in 0..9; zero where there is no rating.
        users: the id of each row.
        items: the id of each column.
    """

    counts: UInt8[np.ndarray, "n m"]
    users: Int[np.ndarray, " n"]
    items: Int[np.ndarray, " m"]


class UserSplit(NamedTuple):
    """The rows of R, shuffled and divided.

    Attributes:
        train: rows to learn from.
        test: rows held out.
    """

    train: UInt8[np.ndarray, "n m"]
    test: UInt8[np.ndarray, "k m"]


def counts_from_stars(stars: np.ndarray) -> UInt8[np.ndarray, "..."]:
    """0.5, 1.0, ..., 5.0 as 0, 1, ..., 9: the paper's integers."""
    return np.asarray(2 * stars - 1, dtype=np.uint8)


def rating_matrix(ratings: Ratings, *, min_ratings: int = 1) -> RatingMatrix:
    """The matrix of the items with at least `min_ratings` ratings.

    As in the paper, 0.5..5.0 stars become the integers 0..9 and everything unrated is zero, as in
    implicit matrix factorisation. A rating of half a star therefore becomes a zero too, as if the
    user had not seen the item. Users left with a row of zeros say nothing and are dropped. Rows
    and columns are in the order of their ids.

    Args:
        ratings: any ratings.
        min_ratings: what an item needs to be kept; the paper uses 5,000 for MovieLens 20M.

    Raises:
        InputError: if no item has so many ratings.
    """
    positive_integer("min_ratings", min_ratings)
    items, columns, sizes = np.unique(ratings.items, return_inverse=True, return_counts=True)
    popular = sizes >= min_ratings
    if not popular.any():
        wanted = f"at most {sizes.max()}, the ratings of the most popular item"
        raise expected("min_ratings", wanted, min_ratings)
    counts = counts_from_stars(ratings.stars)
    kept = popular[columns] & (counts > 0)
    if not kept.any():
        raise expected("ratings", "one of more than half a star", "none")
    users, rows = np.unique(ratings.users[kept], return_inverse=True)
    places = np.cumsum(popular) - 1
    matrix = np.zeros((len(users), int(popular.sum())), np.uint8)
    matrix[rows, places[columns[kept]]] = counts[kept]
    return RatingMatrix(matrix, users, items[popular])


def split_users(
    counts: UInt8[np.ndarray, "n m"], *, test_share: float = 0.1, seed: int = 0
) -> UserSplit:
    """Rows drawn at random for the test, at least one and not all; the rest for training.

    Raises:
        InputError: for a share outside (0, 1) or fewer than two rows.
    """
    if not 0.0 < test_share < 1.0:
        raise expected("test_share", "a number in (0, 1)", test_share)
    if len(counts) < 2:
        raise expected("counts", "at least two users", len(counts))
    order = np.random.default_rng(seed).permutation(len(counts))
    held_out = min(max(round(test_share * len(counts)), 1), len(counts) - 1)
    return UserSplit(counts[order[held_out:]], counts[order[:held_out]])
