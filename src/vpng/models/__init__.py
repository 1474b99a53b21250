"""Ready models as scikit-learn estimators, trained with VPNG; import this package to use them."""

from vpng.extras import Extra, require

require("vpng.models", Extra.MODELS)

from vpng.models.logistic_regression import BayesianLogisticRegression
from vpng.models.poisson_factorization import PoissonFactorization, Recommendations
from vpng.models.vae import VAE

__all__ = ["VAE", "BayesianLogisticRegression", "PoissonFactorization", "Recommendations"]
