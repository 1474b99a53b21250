"""Writes docs/families.md: how the Fisher information of every family is found.

    python tools/families_page.py

A test compares the page with what this makes, so that neither can drift.
"""

import inspect
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from vpng.fisher import source_of_information

PAGE = Path(__file__).parents[1] / "docs" / "families.md"

HEAD = """# Families

How the Fisher information of an observed site is found, for every family of
`numpyro.distributions`.

- **exact**: a closed form.
- **quadrature**: a sum over values, to the precision of a metric; no noise.
- **Hessian**: the size of the second derivatives of the log density at the data.
- **sampled**: ten draws from the family a step, unbiased.
- **none**: it cannot be sampled, and is absent from the metric.

Wrappers (`Independent`, `ExpandedDistribution`, `MaskedDistribution`) and transforms without
parameters keep what the family inside has. So do affine transforms with parameters, of families of
a location and a scale; other transforms with parameters are sampled.

What the prior of a latent adds is exact for Normal, Student-t, Cauchy, Laplace, logistic,
half-Normal, half-Cauchy, exponential, Gamma, multivariate Normal and random walks, behind any
transform without parameters, and sampled otherwise. `numpyro.factor` has the size of its second
derivatives in the latents.

This page is written by `tools/families_page.py`.

| family | information |
| --- | --- |
"""

UNIT = jnp.eye(2)
EXAMPLES: dict[str, Callable[[], dist.Distribution]] = {
    "AsymmetricLaplace": lambda: dist.AsymmetricLaplace(0.0, 1.0, 2.0),
    "AsymmetricLaplaceQuantile": lambda: dist.AsymmetricLaplaceQuantile(0.0, 1.0, 0.3),
    "BernoulliLogits": lambda: dist.BernoulliLogits(0.3),
    "BernoulliProbs": lambda: dist.BernoulliProbs(0.3),
    "Beta": lambda: dist.Beta(2.0, 3.0),
    "BetaBinomial": lambda: dist.BetaBinomial(2.0, 3.0, 5),
    "BetaNegativeBinomial": lambda: dist.BetaNegativeBinomial(4.0, 3.0, 5.0),
    "BetaProportion": lambda: dist.BetaProportion(0.3, 3.0),
    "BinomialLogits": lambda: dist.BinomialLogits(0.3, 5),
    "BinomialProbs": lambda: dist.BinomialProbs(0.3, 5),
    "CAR": lambda: dist.CAR(0.0, 0.5, 1.0, jnp.array([[0.0, 1.0], [1.0, 0.0]])),
    "CategoricalLogits": lambda: dist.CategoricalLogits(jnp.zeros(3)),
    "CategoricalProbs": lambda: dist.CategoricalProbs(jnp.ones(3) / 3),
    "Cauchy": lambda: dist.Cauchy(0.0, 1.0),
    "Chi2": lambda: dist.Chi2(3.0),
    "CirculantNormal": lambda: dist.CirculantNormal(jnp.zeros(3), jnp.array([1.0, 0.3, 0.3])),
    "Dagum": lambda: dist.Dagum(2.0, 3.0, 1.0),
    "Dirichlet": lambda: dist.Dirichlet(jnp.ones(3)),
    "DirichletMultinomial": lambda: dist.DirichletMultinomial(jnp.ones(3), 5),
    "Exponential": lambda: dist.Exponential(1.0),
    "FoldedDistribution": lambda: dist.FoldedDistribution(dist.Normal(1.0, 1.0)),
    "Gamma": lambda: dist.Gamma(2.0, 1.0),
    "GammaPoisson": lambda: dist.GammaPoisson(2.0, 1.0),
    "GaussianRandomWalk": lambda: dist.GaussianRandomWalk(jnp.asarray(1.0), 5),
    "GeometricLogits": lambda: dist.GeometricLogits(0.3),
    "GeometricProbs": lambda: dist.GeometricProbs(0.3),
    "Gompertz": lambda: dist.Gompertz(1.0, 1.0),
    "Gumbel": lambda: dist.Gumbel(0.0, 1.0),
    "HalfCauchy": lambda: dist.HalfCauchy(1.0),
    "HalfNormal": lambda: dist.HalfNormal(1.0),
    "HurdleGamma": lambda: dist.HurdleGamma(0.3, 2.0, 1.0),
    "HurdleLogNormal": lambda: dist.HurdleLogNormal(0.3, 0.0, 1.0),
    "HurdleLogits": lambda: dist.HurdleLogits(dist.Poisson(2.0), 0.3),
    "HurdlePoisson": lambda: dist.HurdlePoisson(0.3, 2.0),
    "HurdleProbs": lambda: dist.HurdleProbs(dist.Poisson(2.0), 0.3),
    "IntervalCensoredDistribution": lambda: dist.IntervalCensoredDistribution(
        dist.Normal(0.0, 1.0), jnp.zeros(1, bool), jnp.zeros(1, bool)
    ),
    "InverseGamma": lambda: dist.InverseGamma(2.0, 1.0),
    "Kumaraswamy": lambda: dist.Kumaraswamy(2.0, 3.0),
    "LKJCholesky": lambda: dist.LKJCholesky(3, 1.0),
    "Laplace": lambda: dist.Laplace(0.0, 1.0),
    "LeftCensoredDistribution": lambda: dist.LeftCensoredDistribution(
        dist.Normal(0.0, 1.0), jnp.zeros(1, bool)
    ),
    "LeftTruncatedDistribution": lambda: dist.LeftTruncatedDistribution(dist.Normal(0.0, 1.0)),
    "LeftTruncatedGamma": lambda: dist.LeftTruncatedGamma(dist.Gamma(2.0, 1.0), low=0.5),
    "Levy": lambda: dist.Levy(0.0, 1.0),
    "LogNormal": lambda: dist.LogNormal(0.0, 1.0),
    "Logistic": lambda: dist.Logistic(0.0, 1.0),
    "LowRankMultivariateNormal": lambda: dist.LowRankMultivariateNormal(
        jnp.zeros(2), jnp.ones((2, 1)), jnp.ones(2)
    ),
    "LowerTruncatedPowerLaw": lambda: dist.LowerTruncatedPowerLaw(-3.0, 1.0),
    "MixtureGeneral": lambda: dist.MixtureGeneral(
        dist.Categorical(jnp.ones(2) / 2), [dist.Normal(0.0, 1.0), dist.Cauchy(0.0, 1.0)]
    ),
    "MixtureSameFamily": lambda: dist.MixtureSameFamily(
        dist.Categorical(jnp.ones(2) / 2), dist.Normal(jnp.zeros(2), 1.0)
    ),
    "MultinomialLogits": lambda: dist.MultinomialLogits(jnp.zeros(3), 5),
    "MultinomialProbs": lambda: dist.MultinomialProbs(jnp.ones(3) / 3, 5),
    "MultivariateNormal": lambda: dist.MultivariateNormal(jnp.zeros(2), UNIT),
    "MultivariateStudentT": lambda: dist.MultivariateStudentT(3.0, jnp.zeros(2), UNIT),
    "NegativeBinomial2": lambda: dist.NegativeBinomial2(2.0, 1.0),
    "NegativeBinomialLogits": lambda: dist.NegativeBinomialLogits(2.0, 0.3),
    "NegativeBinomialProbs": lambda: dist.NegativeBinomialProbs(2.0, 0.3),
    "Normal": lambda: dist.Normal(0.0, 1.0),
    "OrderedLogistic": lambda: dist.OrderedLogistic(0.0, jnp.array([-1.0, 1.0])),
    "Pareto": lambda: dist.Pareto(1.0, 3.0),
    "Poisson": lambda: dist.Poisson(2.0),
    "ProjectedNormal": lambda: dist.ProjectedNormal(jnp.ones(2)),
    "RightCensoredDistribution": lambda: dist.RightCensoredDistribution(
        dist.Normal(0.0, 1.0), jnp.zeros(1, bool)
    ),
    "RightTruncatedDistribution": lambda: dist.RightTruncatedDistribution(dist.Normal(0.0, 1.0)),
    "RightTruncatedGamma": lambda: dist.RightTruncatedGamma(dist.Gamma(2.0, 1.0), high=2.0),
    "SineBivariateVonMises": lambda: dist.SineBivariateVonMises(0.0, 0.0, 2.0, 2.0, 0.5),
    "SineSkewed": lambda: dist.SineSkewed(
        dist.VonMises(jnp.zeros(1), 1.0).to_event(1), jnp.zeros(1)
    ),
    "SoftLaplace": lambda: dist.SoftLaplace(0.0, 1.0),
    "StudentT": lambda: dist.StudentT(3.0, 0.0, 1.0),
    "TwoSidedTruncatedDistribution": lambda: dist.TwoSidedTruncatedDistribution(
        dist.Normal(0.0, 1.0), 0.0, 1.0
    ),
    "TwoSidedTruncatedGamma": lambda: dist.TwoSidedTruncatedGamma(
        dist.Gamma(2.0, 1.0), low=0.5, high=2.0
    ),
    "VonMises": lambda: dist.VonMises(0.0, 1.0),
    "Weibull": lambda: dist.Weibull(1.0, 2.0),
    "Wishart": lambda: dist.Wishart(3.0, UNIT),
    "WishartCholesky": lambda: dist.WishartCholesky(3.0, UNIT),
    "ZeroInflatedLogits": lambda: dist.ZeroInflatedLogits(dist.Poisson(2.0), 0.3),
    "ZeroInflatedPoisson": lambda: dist.ZeroInflatedPoisson(0.3, 2.0),
    "ZeroInflatedProbs": lambda: dist.ZeroInflatedProbs(dist.Poisson(2.0), 0.3),
}
"""One member of every family that the page tells of."""

NOT_OF_DATA = {
    "Delta", "DiscreteUniform", "Distribution", "DoublyTruncatedPowerLaw", "EulerMaruyama",
    "ExpandedDistribution", "GaussianCopula", "GaussianCopulaBeta", "GaussianStateSpace",
    "ImproperUniform", "Independent", "InverseWishart", "InverseWishartCholesky", "LKJ",
    "LogUniform", "MaskedDistribution", "MatrixNormal", "RelaxedBernoulliLogits",
    "TransformedDistribution", "TruncatedPolyaGamma", "Uniform", "Unit", "ZeroSumNormal",
}  # fmt: skip
"""Wrappers, densities without parameters of a finite information, and families of priors."""


def families() -> set[str]:
    """All that NumPyro has."""
    found = {name: getattr(dist, name) for name in dist.__all__}
    return {
        name
        for name, each in found.items()
        if inspect.isclass(each) and issubclass(each, dist.Distribution)
    }


def source_of(make: Callable[[], dist.Distribution]) -> str:
    """Where the information is from; nothing is computed."""
    found = []
    jax.eval_shape(lambda: found.append(source_of_information(make())))
    return found[0].value


def page() -> str:
    """The whole page."""
    rows = [f"| `{name}` | {source_of(make)} |" for name, make in EXAMPLES.items()]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
