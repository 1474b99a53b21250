"""Ready problems: the paper's models."""

from vpng.problems.adapters import from_equinox, from_linen, from_nnx
from vpng.problems.autoencoder import (
    VariationalAutoencoder,
    calibrated,
    decode,
    mlp_vae,
    paper_vae,
    reconstruct,
    sample_prior,
    vae,
)
from vpng.problems.gaussian_mean import GaussianMean
from vpng.problems.likelihoods import (
    AbstractLikelihood,
    BernoulliLikelihood,
    CategoricalLikelihood,
    NormalLikelihood,
    PoissonLikelihood,
)
from vpng.problems.linear_latent import LinearLatent
from vpng.problems.logistic_regression import Labelled, LogisticRegression, MeanField
from vpng.problems.matrix_factorization import (
    MatrixFactorization,
    expected_counts,
    leading_directions,
    paper_factorization,
    towards_mode,
)
from vpng.problems.networks import GLOROT, TRUNCATED_NORMAL, Network, mlp
from vpng.problems.ratings import (
    RatingMatrix,
    Ratings,
    UserSplit,
    rating_matrix,
    split_users,
)
from vpng.problems.softplus_poisson import Counted, SoftplusPoisson, counted
from vpng.problems.standardising import standardised

__all__ = [
    "GLOROT",
    "TRUNCATED_NORMAL",
    "AbstractLikelihood",
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "Counted",
    "GaussianMean",
    "Labelled",
    "LinearLatent",
    "LogisticRegression",
    "MatrixFactorization",
    "MeanField",
    "Network",
    "NormalLikelihood",
    "PoissonLikelihood",
    "RatingMatrix",
    "Ratings",
    "SoftplusPoisson",
    "UserSplit",
    "VariationalAutoencoder",
    "calibrated",
    "counted",
    "decode",
    "expected_counts",
    "from_equinox",
    "from_linen",
    "from_nnx",
    "leading_directions",
    "mlp",
    "mlp_vae",
    "paper_factorization",
    "paper_vae",
    "rating_matrix",
    "reconstruct",
    "sample_prior",
    "split_users",
    "standardised",
    "towards_mode",
    "vae",
]
