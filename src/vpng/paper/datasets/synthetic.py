"""Ratings made up in the shape of MovieLens: popularity and activity tails, correlated tastes.

The shapes are MovieLens 20M's. Popularity by rank r is a stretched exponential,
exp(-(r / 114)^0.44), which gives its most popular movie, its thousandth, its median and its total;
a user's activity is 20 plus a log-normal number with the median and mean of the set. Tastes are a
topic model: users mix a few genres, movies belong to a few, and a user meets a movie by drawing a
genre and then a movie of it. Stars are the movie's quality plus the user's leniency, the fit of
genres and noise, rounded to half stars.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from vpng.checks import positive_integer
from vpng.errors import expected
from vpng.problems import Ratings


class Shape(NamedTuple):
    """How many of what; every user has at least one rating."""

    num_users: int
    num_items: int
    num_ratings: int


MOVIELENS_20M = Shape(138_493, 27_278, 20_000_263)
"""The size of MovieLens 20M."""

SMALL = Shape(20_000, 500, 800_000)
"""A matrix that is 8 percent full, of the most popular movies."""

_NUM_GENRES = 20
_MOST_OF_THE_ITEMS = 1 / 3


def synthetic_ratings(shape: Shape = SMALL, *, seed: int = 0) -> Ratings:
    """Ratings of exactly this shape, no pair twice; ids start at 1, popular items first.

    Raises:
        InputError: for a shape that cannot be had.
    """
    for name, value in shape._asdict().items():
        positive_integer(name, value)
    most = max(int(_MOST_OF_THE_ITEMS * shape.num_items), 1)
    if not shape.num_users <= shape.num_ratings <= shape.num_users * most // 2:
        wanted = f"between {shape.num_users} and {shape.num_users * most // 2}"
        raise expected("num_ratings", wanted, shape.num_ratings)
    rng = np.random.default_rng(seed)
    tastes = rng.dirichlet(np.full(_NUM_GENRES, 0.2), shape.num_users)
    genres = rng.dirichlet(np.full(_NUM_GENRES, 0.1), shape.num_items)
    popularity = np.exp(-((np.arange(1, shape.num_items + 1) / 114.0) ** 0.44))
    activity = _activity(rng, shape, most)
    pairs = _pairs(rng, activity, tastes, popularity[:, None] * (genres + 0.01))
    users, items = np.divmod(pairs, shape.num_items)
    fit = np.zeros(len(pairs), np.float32)
    for taste, genre in zip(tastes.T, genres.T, strict=True):
        fit += (taste[users] * genre[items]).astype(np.float32)
    quality, leniency = rng.normal(0.0, 0.4, shape.num_items), rng.normal(0.0, 0.4, shape.num_users)
    wished = 3.4 + quality[items] + leniency[users] + 0.6 * fit + rng.normal(0, 0.8, len(pairs))
    stars = np.clip(np.round(2 * wished) / 2, 0.5, 5.0).astype(np.float32)
    return Ratings((users + 1).astype(np.int32), (items + 1).astype(np.int32), stars)


def _activity(rng: np.random.Generator, shape: Shape, most: int) -> Int[np.ndarray, " n"]:
    """Ratings of each user: a long tail in 1..most with the right sum."""
    wished = 20.0 + rng.lognormal(np.log(48.0), 1.38, shape.num_users)
    low, high = 0.0, float(shape.num_ratings)
    for _ in range(100):
        factor = (low + high) / 2
        counts = np.clip(np.round(factor * wished), 1, most).astype(np.int64)
        low, high = (factor, high) if counts.sum() < shape.num_ratings else (low, factor)
    while missing := shape.num_ratings - int(counts.sum()):
        can_move = counts < most if missing > 0 else counts > 1
        chosen = rng.permutation(np.flatnonzero(can_move))[: abs(missing)]
        counts[chosen] += np.sign(missing)
    return counts


def _pairs(
    rng: np.random.Generator,
    activity: Int[np.ndarray, " n"],
    tastes: Float[np.ndarray, "n k"],
    weights: Float[np.ndarray, "m k"],
) -> Int[np.ndarray, " r"]:
    """Distinct pairs user * m + item, about `activity` of each user and as many in all, sorted.

    Drawn in rounds: what a user meets twice is drawn again in the next round.
    """
    num_items, num_genres = weights.shape
    steps = np.cumsum(weights / weights.sum(axis=0), axis=0)
    found = np.zeros(0, np.int64)
    missing = activity
    while len(found) < activity.sum():
        by_genre = rng.multinomial(missing + missing // 4 + (missing > 0), tastes)
        drawn = [found]
        for genre in range(num_genres):
            users = np.repeat(np.arange(len(activity)), by_genre[:, genre])
            items = np.searchsorted(steps[:, genre], rng.random(len(users)))
            drawn.append(users * num_items + np.minimum(items, num_items - 1))
        found = np.unique(np.concatenate(drawn))
        missing = activity - np.bincount(found // num_items, minlength=len(activity))
        missing = np.maximum(missing, 0)
    owners = found // num_items
    spare = np.flatnonzero(owners[1:] == owners[:-1]) + 1
    return np.delete(found, rng.permutation(spare)[: len(found) - activity.sum()])
