"""Data sets, found on disk or downloaded once; what a loader needs is imported when it runs."""

from vpng.datasets.digits import load_digits
from vpng.datasets.fetch import Mirrored
from vpng.datasets.idx import parse_idx
from vpng.datasets.images import Images
from vpng.datasets.mnist import MNIST_FILES, MNIST_MIRRORS, load_mnist
from vpng.datasets.movielens import EDITIONS, MOVIELENS_MIRRORS, load_movielens, read_titles
from vpng.datasets.rating_matrix import RatingMatrix, UserSplit, rating_matrix, split_users
from vpng.datasets.ratings import Ratings, read_ratings
from vpng.datasets.synthetic_ratings import MOVIELENS_20M, SMALL, Shape, synthetic_ratings

__all__ = [
    "EDITIONS",
    "MNIST_FILES",
    "MNIST_MIRRORS",
    "MOVIELENS_20M",
    "MOVIELENS_MIRRORS",
    "SMALL",
    "Images",
    "Mirrored",
    "RatingMatrix",
    "Ratings",
    "Shape",
    "UserSplit",
    "load_digits",
    "load_mnist",
    "load_movielens",
    "parse_idx",
    "rating_matrix",
    "read_ratings",
    "read_titles",
    "split_users",
    "synthetic_ratings",
]
