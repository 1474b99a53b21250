"""Data sets, found on disk or downloaded once; what a loader needs is imported when it runs."""

from vpng.paper.datasets.digits import load_digits
from vpng.paper.datasets.fetch import Mirrored
from vpng.paper.datasets.idx import parse_idx
from vpng.paper.datasets.images import Images
from vpng.paper.datasets.mnist import MNIST_FILES, MNIST_MIRRORS, load_mnist
from vpng.paper.datasets.movielens import EDITIONS, MOVIELENS_MIRRORS, load_movielens, read_titles
from vpng.paper.datasets.ratings import read_ratings
from vpng.paper.datasets.synthetic import MOVIELENS_20M, SMALL, Shape, synthetic_ratings
from vpng.problems import RatingMatrix, Ratings, UserSplit, rating_matrix, split_users

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
