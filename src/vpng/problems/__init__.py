"""Ready problems: the paper's models."""

from vpng.problems.gaussian_mean import GaussianMean
from vpng.problems.linear_latent import LinearLatent
from vpng.problems.logistic_regression import Labelled, LogisticRegression, MeanField

__all__ = ["GaussianMean", "Labelled", "LinearLatent", "LogisticRegression", "MeanField"]
