"""The whitening of every registered family against the definition E[score score^T]."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import gammaln
from scipy.special import roots_hermite

from vpng.fisher import has_closed_form, whiten
from vpng.fisher.families import _family

pytestmark = pytest.mark.usefixtures("x64")


def closed_form(make, parameters):
    """S S^T: the Gram matrix of the whitening's Jacobian."""
    at = make(parameters)
    rows = jax.jacfwd(lambda p: whiten(at, make(p)).ravel())(parameters)
    return rows.T @ rows


def brute_force(make, parameters, values, weights):
    """sum_x w(x) p(x) score(x) score(x)^T over nodes x, and the mass that the nodes see."""

    def one(x):
        return _log_prob(make(parameters), x), jax.jacfwd(lambda p: _log_prob(make(p), x))(
            parameters
        )

    log_mass, scores = jax.vmap(one)(values)
    mass = weights * jnp.exp(log_mass)
    return jnp.einsum("x,xi,xj->ij", mass, scores, scores), jnp.sum(mass)


def _log_prob(d, x):
    if not isinstance(d, dist.GammaPoisson):
        return d.log_prob(x)
    # NumPyro's own uses betaln, which in JAX has seven digits even in float64.
    r, log_odds = d.concentration, jnp.log(d.rate)
    binomial = gammaln(r + x) - gammaln(r) - gammaln(x + 1.0)
    return binomial - r * jnp.log1p(1 / d.rate) - x * (log_odds + jnp.log1p(1 / d.rate))


def tanh_sinh(low=-np.inf, high=np.inf, centre=0.0, width=1.0, num=2001, reach=6.0):
    """Nodes and weights of the double-exponential trapezoid rule on an interval."""
    t = np.linspace(-reach, reach, num)
    step = t[1] - t[0]
    inner, slope = 0.5 * np.pi * np.sinh(t), 0.5 * np.pi * np.cosh(t)
    if np.isfinite(low) and np.isfinite(high):
        half = 0.5 * (high - low)
        nodes = low + half * (1 + np.tanh(inner))
        weights = half * slope / np.cosh(inner) ** 2
    elif np.isfinite(low):
        nodes, weights = low + width * np.exp(inner), width * slope * np.exp(inner)
    else:
        nodes, weights = centre + width * np.sinh(inner), width * slope * np.cosh(inner)
    keep = (weights * step > 1e-280) & (np.abs(nodes) < 1e120) & (nodes > low) & (nodes < high)
    middle = nodes[num // 2]
    return np.where(keep, nodes, middle), np.where(keep, weights * step, 0.0)


# name -> (constructor of the distribution from a parameter vector, points, nodes)
CASES = {
    "Normal": (lambda p: dist.Normal(p[0], p[1]), [[0.3, 0.7], [-2.0, 3.0]], "line"),
    "Cauchy": (lambda p: dist.Cauchy(p[0], p[1]), [[0.3, 0.7], [-2.0, 3.0]], "line"),
    "Logistic": (lambda p: dist.Logistic(p[0], p[1]), [[0.3, 0.7], [-2.0, 3.0]], "line"),
    "Laplace": (lambda p: dist.Laplace(p[0], p[1]), [[0.0, 0.7], [0.0, 3.0]], "two half lines"),
    "StudentT": (
        lambda p: dist.StudentT(p[0], p[1], p[2]),
        [[3.0, 0.5, 0.7], [0.8, -1.0, 2.0], [25.0, 0.0, 1.0]],
        "line",
    ),
    "Weibull": (lambda p: dist.Weibull(p[0], p[1]), [[0.7, 1.4], [5.0, 2.5]], "half line"),
    "HalfNormal": (lambda p: dist.HalfNormal(p[0]), [[0.4], [5.0]], "half line"),
    "HalfCauchy": (lambda p: dist.HalfCauchy(p[0]), [[0.4], [5.0]], "half line by scale"),
    "Exponential": (lambda p: dist.Exponential(p[0]), [[0.2], [7.0]], "half line"),
    "Gamma": (lambda p: dist.Gamma(p[0], p[1]), [[0.6, 0.5], [4.0, 3.0], [60.0, 1.0]], "half line"),
    "Chi2": (lambda p: dist.Chi2(p[0]), [[3.0], [9.0]], "half line"),
    "Beta": (lambda p: dist.Beta(p[0], p[1]), [[1.5, 0.8], [3.0, 6.0]], "unit"),
    "BetaProportion": (lambda p: dist.BetaProportion(p[0], p[1]), [[0.3, 5.0]], "unit"),
    "Poisson": (lambda p: dist.Poisson(p[0]), [[0.05], [3.0], [300.0]], "counts"),
    "GeometricProbs": (lambda p: dist.Geometric(probs=p[0]), [[0.2], [0.9]], "counts"),
    "GeometricLogits": (lambda p: dist.Geometric(logits=p[0]), [[-2.0], [1.5]], "counts"),
    "BernoulliProbs": (lambda p: dist.Bernoulli(probs=p[0]), [[0.01], [0.7]], "binary"),
    "BernoulliLogits": (lambda p: dist.Bernoulli(logits=p[0]), [[-4.0], [0.3]], "binary"),
    "BinomialProbs": (lambda p: dist.Binomial(6, probs=p[0]), [[0.05], [0.6]], "six"),
    "BinomialLogits": (lambda p: dist.Binomial(6, logits=p[0]), [[-3.0], [0.6]], "six"),
    "CategoricalLogits": (
        lambda p: dist.Categorical(logits=p),
        [[0.1, -2.0, 1.0], [0.0, 0.0, 0.0]],
        "three",
    ),
    # The probabilities move inside the simplex, as a model's do.
    "CategoricalProbs": (
        lambda p: dist.Categorical(probs=jax.nn.softmax(p)),
        [[0.1, -2.0, 1.0], [0.0, 0.0, 0.0]],
        "three",
    ),
    "OrderedLogistic": (
        lambda p: dist.OrderedLogistic(p[0], jnp.stack([p[1], p[1] + jnp.exp(p[2])])),
        [[0.3, -0.5, 0.2]],
        "three",
    ),
    "MultinomialLogits": (
        lambda p: dist.Multinomial(total_count=3, logits=p),
        [[0.1, -2.0, 1.0]],
        "threes",
    ),
    "MultinomialProbs": (
        lambda p: dist.Multinomial(total_count=3, probs=jax.nn.softmax(p)),
        [[0.1, -2.0, 1.0]],
        "threes",
    ),
    "NegativeBinomial2": (
        lambda p: dist.NegativeBinomial2(p[0], p[1]),
        [[2.0, 0.7], [40.0, 5.0], [0.1, 3.0]],
        "counts",
    ),
    "NegativeBinomialProbs": (
        lambda p: dist.NegativeBinomialProbs(p[0], p[1]),
        [[3.0, 0.4]],
        "counts",
    ),
    "NegativeBinomialLogits": (
        lambda p: dist.NegativeBinomialLogits(p[0], p[1]),
        [[3.0, -0.4]],
        "counts",
    ),
    "GammaPoisson": (lambda p: dist.GammaPoisson(p[0], p[1]), [[2.0, 0.5], [0.3, 2.0]], "counts"),
    "MultivariateNormal": (
        lambda p: dist.MultivariateNormal(p[:2], scale_tril=_lower(p[2:])),
        [[0.2, -0.3, 0.7, 0.4, 1.3]],
        "plane",
    ),
    "MultivariateNormal by covariance": (
        lambda p: dist.MultivariateNormal(p[:2], covariance_matrix=_symmetric(p[2:])),
        [[0.2, -0.3, 0.7, 0.4, 1.3]],
        "plane",
    ),
    "MultivariateNormal by precision": (
        lambda p: dist.MultivariateNormal(p[:2], precision_matrix=_symmetric(p[2:])),
        [[0.2, -0.3, 0.7, 0.4, 1.3]],
        "plane",
    ),
}


def _lower(p):
    return (
        np.array([[1.0, 0.0], [0.0, 0.0]]) * p[0]
        + np.array([[0.0, 0.0], [1.0, 0.0]]) * p[1]
        + np.array([[0.0, 0.0], [0.0, 1.0]]) * p[2]
    )


def _symmetric(p):
    return jnp.stack([jnp.stack([p[0], p[1]]), jnp.stack([p[1], p[2]])])


def nodes_for(where, make, parameters):
    """Values x and quadrature weights (one for a sum over outcomes)."""
    if where == "line":
        d = make(parameters)
        return tanh_sinh(centre=float(d.loc), width=float(d.scale))
    if where == "two half lines":
        nodes, weights = tanh_sinh(low=0.0)
        return np.concatenate([-nodes, nodes]), np.concatenate([weights, weights])
    if where == "half line by scale":
        return tanh_sinh(low=0.0, width=float(make(parameters).scale))
    if where == "half line":
        return tanh_sinh(low=0.0, width=float(make(parameters).mean))
    if where == "unit":
        return tanh_sinh(low=0.0, high=1.0)
    if where == "plane":
        x, w = roots_hermite(40)
        grid = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2) * np.sqrt(2.0)
        weights = np.outer(w, w).ravel() / np.pi

        @jax.jit
        def on_the_plane(parameters):
            d = make(parameters)
            values = d.loc + grid @ d.scale_tril.T
            # Gauss-Hermite weights hold the density already; divide it out again.
            return values, weights / jnp.exp(d.log_prob(values))

        return on_the_plane(parameters)
    outcomes = {
        "counts": np.arange(2000),
        "binary": np.arange(2),
        "six": np.arange(7),
        "three": np.arange(3),
        "threes": np.array([[a, b, 3 - a - b] for a in range(4) for b in range(4 - a)]),
    }
    values = outcomes[where]
    return values, np.ones(values.shape[0])


@pytest.mark.parametrize("name", CASES)
def test_fisher_is_the_second_moment_of_the_score(name):
    make, points, where = CASES[name]

    @jax.jit
    def both(parameters, values, weights):
        assert has_closed_form(make(parameters))
        return closed_form(make, parameters), brute_force(make, parameters, values, weights)

    for point in points:
        parameters = np.asarray(point)
        actual, (wanted, mass) = both(parameters, *nodes_for(where, make, parameters))
        assert float(mass) == pytest.approx(1.0, abs=1e-9)
        largest = np.asarray(wanted).max()
        np.testing.assert_allclose(actual, wanted, rtol=1e-7, atol=1e-8 * largest)


def test_every_registered_family_is_in_the_table():
    """A new family must come with an oracle here."""
    wrappers = {
        dist.Distribution,
        dist.Independent,
        dist.ExpandedDistribution,
        dist.MaskedDistribution,
        dist.TransformedDistribution,
        dist.FoldedDistribution,
    }
    elsewhere = {  # test_numerical.py
        dist.VonMises,
        dist.Gumbel,
        dist.Dirichlet,
        dist.LowRankMultivariateNormal,
        dist.GaussianRandomWalk,
    }
    registered = (
        {
            family
            for family in _family.registry
            if issubclass(family, dist.Distribution) and family.__module__.startswith("numpyro.")
        }
        - wrappers
        - elsewhere
    )
    tested = set()
    for make, points, _ in CASES.values():
        jax.eval_shape(lambda p, make=make: tested.add(type(make(p))), np.asarray(points[0]))
    uncovered = {f.__name__ for f in registered if not any(issubclass(t, f) for t in tested)}
    assert not uncovered


@pytest.mark.parametrize("given", ["probs", "logits"])
def test_every_multinomial_has_its_own_count(given):
    """Each is as many draws from the same categories."""
    counts = np.array([2, 5, 0])
    change = {"probs": jax.nn.softmax, "logits": lambda p: p}[given]

    @jax.jit
    def both(p):
        multinomial = lambda p: dist.Multinomial(counts, **{given: change(p)})
        assert whiten(multinomial(p), multinomial(p)).shape == (3, 3)
        one = closed_form(lambda p: dist.Categorical(**{given: change(p)}), p)
        return closed_form(multinomial, p), counts.sum() * one

    np.testing.assert_allclose(*both(np.array([0.1, -2.0, 1.0])), rtol=1e-10, atol=1e-12)


class CannotBeFlattened(dist.transforms.Transform):
    """A user's transform as short as NumPyro allows."""

    domain = codomain = dist.constraints.real

    def __call__(self, x):
        return jnp.sinh(x)

    def _inverse(self, y):
        return jnp.arcsinh(y)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: dist.DirichletMultinomial(p * jnp.ones(3), 5),
        lambda p: dist.LKJCholesky(3, jnp.exp(p)),
        lambda p: dist.MultivariateStudentT(3.0, p * jnp.ones(2), jnp.eye(2)),
        lambda p: dist.TransformedDistribution(
            dist.Gamma(2.0, jnp.exp(p)), dist.transforms.AffineTransform(p, 2.0)
        ),
        lambda p: dist.TransformedDistribution(
            dist.Beta(2.0, jnp.exp(p)), dist.transforms.AffineTransform(0.0, p)
        ),
        lambda p: dist.FoldedDistribution(dist.Normal(p, 1.0)),
        lambda p: dist.TransformedDistribution(dist.Normal(p, 1.0), CannotBeFlattened()),
    ],
    ids=[
        "DirichletMultinomial",
        "LKJCholesky",
        "MultivariateStudentT",
        "moved Gamma",
        "affine Beta",
        "folded Normal",
        "user's transform",
    ],
)
def test_unknown_families_have_no_closed_form(make):
    d = make(jnp.asarray(0.4))
    assert not has_closed_form(d)
    with pytest.raises(NotImplementedError, match=type(d).__name__):
        whiten(d, d)
