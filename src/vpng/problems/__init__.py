"""Ready problems: the paper's models."""

from vpng.problems.adapters import from_equinox, from_linen, from_nnx
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
from vpng.problems.networks import GLOROT, TRUNCATED_NORMAL, Network, mlp
from vpng.problems.vae import (
    VariationalAutoencoder,
    calibrated,
    decode,
    mlp_vae,
    paper_vae,
    reconstruct,
    sample_prior,
    vae,
)

__all__ = [
    "GLOROT",
    "TRUNCATED_NORMAL",
    "AbstractLikelihood",
    "BernoulliLikelihood",
    "CategoricalLikelihood",
    "GaussianMean",
    "Labelled",
    "LinearLatent",
    "LogisticRegression",
    "MeanField",
    "Network",
    "NormalLikelihood",
    "PoissonLikelihood",
    "VariationalAutoencoder",
    "calibrated",
    "decode",
    "from_equinox",
    "from_linen",
    "from_nnx",
    "mlp",
    "mlp_vae",
    "paper_vae",
    "reconstruct",
    "sample_prior",
    "vae",
]
