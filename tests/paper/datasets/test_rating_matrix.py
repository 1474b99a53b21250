"""The paper's preparation of ratings, and the ratings that are made up."""

import numpy as np
import pytest

from vpng.errors import InputError
from vpng.paper.datasets import Ratings, Shape, rating_matrix, split_users, synthetic_ratings

RATINGS = Ratings(
    users=np.array([9, 9, 4, 4, 4, 2, 1]),
    items=np.array([30, 10, 30, 20, 10, 20, 30]),
    stars=np.array([5.0, 1.0, 0.5, 3.5, 2.0, 4.0, 0.5], np.float32),
)


def test_half_stars_become_the_integers_of_the_paper():
    matrix = rating_matrix(RATINGS)
    assert matrix.items.tolist() == [10, 20, 30]
    # User 1 gave half a star alone: a row of zeros, dropped.
    assert matrix.users.tolist() == [2, 4, 9]
    assert matrix.counts.tolist() == [[0, 7, 0], [3, 6, 0], [1, 0, 9]]
    assert matrix.counts.dtype == np.uint8


def test_rare_items_are_left_out():
    matrix = rating_matrix(RATINGS, min_ratings=3)
    assert matrix.items.tolist() == [30]
    assert matrix.users.tolist() == [9]
    with pytest.raises(InputError, match="min_ratings: expected at most 3"):
        rating_matrix(RATINGS, min_ratings=4)
    with pytest.raises(InputError, match="half a star"):
        rating_matrix(Ratings(np.array([1]), np.array([1]), np.array([0.5])))


def test_users_are_split_once_each():
    counts = np.arange(40, dtype=np.uint8).reshape(20, 2)
    split = split_users(counts, test_share=0.1, seed=3)
    assert split.test.shape == (2, 2)
    together = np.concatenate([split.train, split.test])
    assert sorted(together[:, 0].tolist()) == counts[:, 0].tolist()
    again = split_users(counts, test_share=0.1, seed=3)
    assert (split.train == again.train).all()
    assert (split.train != split_users(counts, seed=4).train).any()


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5])
def test_a_split_needs_a_share_and_users(share):
    with pytest.raises(InputError, match="test_share"):
        split_users(np.ones((4, 2), np.uint8), test_share=share)
    with pytest.raises(InputError, match="two users"):
        split_users(np.ones((1, 2), np.uint8))


@pytest.fixture(scope="module")
def made():
    return synthetic_ratings(Shape(600, 120, 9000), seed=1)


def test_the_shape_is_exact(made):
    assert len(made) == 9000
    assert len(np.unique(made.users)) == 600
    assert (made.users.min(), made.users.max()) == (1, 600)
    assert set(made.items.tolist()) <= set(range(1, 121))
    assert len(np.unique(made.users.astype(int) * 1000 + made.items)) == 9000
    assert set(np.unique(2 * made.stars)) <= set(range(1, 11))


def test_tails_are_long(made):
    popularity = np.sort(np.bincount(made.items, minlength=121)[1:])
    assert popularity[-1] > 2 * popularity[12]
    activity = np.bincount(made.users)[1:]
    assert activity.max() > 3 * np.median(activity)


def test_tastes_are_correlated(made):
    """The item-item correlations exceed those of a matrix with the same margins, shuffled."""

    def spread(items):
        matrix = np.zeros((600, 120))
        matrix[made.users - 1, items - 1] = 1
        values = np.linalg.eigvalsh(np.corrcoef(matrix.T + 1e-9 * np.eye(600, 120).T))
        return values[-5:].sum()

    shuffled = np.random.default_rng(0).permutation(made.items)
    assert spread(made.items) > 1.1 * spread(shuffled)


def test_seeds_and_bad_shapes():
    again = synthetic_ratings(Shape(600, 120, 9000), seed=1)
    other = synthetic_ratings(Shape(600, 120, 9000), seed=2)
    assert (again.stars != other.stars).any()
    with pytest.raises(InputError, match="num_ratings"):
        synthetic_ratings(Shape(10, 30, 9))
    with pytest.raises(InputError, match="num_ratings"):
        synthetic_ratings(Shape(10, 30, 250))
    with pytest.raises(InputError, match="num_items"):
        synthetic_ratings(Shape(10, 0, 20))
