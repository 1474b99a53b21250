"""Independent, expanded, masked, transformed distributions have the Fisher of what they wrap."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from vpng.fisher import has_closed_form, whiten

pytestmark = pytest.mark.usefixtures("x64")


def factor(make, parameters):
    """The whitening and its Jacobian, shape rows + (P,)."""
    at = make(parameters)
    return jax.jacfwd(lambda p: whiten(at, make(p)))(parameters)


def fisher(make, parameters):
    rows = factor(make, parameters).reshape(-1, parameters.size)
    return rows.T @ rows


def fishers(parameters, *makes):
    """The Fisher of each, from one compiled program."""
    return jax.jit(lambda p: [fisher(make, p) for make in makes])(parameters)


def curvature_of_the_divergence(make, parameters):
    """The Hessian in b of KL(p(a) || p(b)) at a = b, summed over the batch: the same matrix."""

    def divergence(p):
        return jnp.sum(dist.kl_divergence(make(parameters), make(p)))

    return jax.hessian(divergence)(parameters)


def test_a_parameter_smaller_than_the_batch_collects_the_information_of_all_elements():
    """Normal(loc [3], one scale): I_loc = 1/s^2 each, I_scale = 3 * 2/s^2."""
    make = lambda p: dist.Normal(p[:3], p[3])
    wanted = np.diag([4.0, 4.0, 4.0, 24.0])
    (actual,) = fishers(jnp.array([1.0, 2.0, 3.0, 0.5]), make)
    np.testing.assert_allclose(actual, wanted, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: dist.Normal(p[:2][:, None], jnp.exp(p[2:])).to_event(1),
        lambda p: dist.Normal(p[0], jnp.exp(p[1:2])).expand((3, 2)),
        lambda p: dist.Normal(p[:2][:, None], jnp.exp(p[2:4])).expand((4, 2, 2)).to_event(2),
        lambda p: dist.Gamma(jnp.exp(p[:3]), jnp.exp(p[3])).to_event(1),
        lambda p: dist.Beta(jnp.exp(p[:2]), jnp.exp(p[2])),
        lambda p: dist.MultivariateNormal(p[:2], scale_tril=jnp.exp(p[2]) * jnp.eye(2)).expand(
            (3,)
        ),
        lambda p: dist.MultivariateNormal(
            jnp.zeros((3, 2)), covariance_matrix=jnp.eye(2) + jnp.outer(p[:2], p[:2])
        ),
    ],
)
def test_fisher_is_the_curvature_of_numpyros_own_divergence(make):
    @jax.jit
    def both(p):
        assert has_closed_form(make(p))
        return fisher(make, p), curvature_of_the_divergence(make, p)

    np.testing.assert_allclose(*both(jnp.array([0.3, -0.5, 0.8, 0.2])), rtol=1e-8, atol=1e-9)


def test_rows_start_with_the_batch_shape():
    shape = lambda make: jax.eval_shape(lambda p: factor(make, p), jnp.ones(3)).shape
    make = lambda p: dist.Normal(p * jnp.ones((5, 3)), 1.0).to_event(1)
    assert shape(make)[:1] == make(jnp.ones(3)).batch_shape
    assert shape(lambda p: dist.Poisson(jnp.exp(p)).expand((4, 3)))[:2] == (4, 3)


def test_masked_elements_carry_no_information():
    mask = jnp.array([True, False, True])
    some, none, events = fishers(
        jnp.zeros(3),
        lambda p: dist.Normal(p, 0.5).mask(mask),
        lambda p: dist.Normal(p, 0.5).mask(False),
        lambda p: dist.Normal(p.reshape(3, 1) * jnp.ones(2), 0.5).to_event(1).mask(mask),
    )
    np.testing.assert_allclose(some, np.diag([4.0, 0.0, 4.0]))
    np.testing.assert_array_equal(none, 0.0)
    np.testing.assert_allclose(events, np.diag([8.0, 0.0, 8.0]))


def test_a_fixed_bijection_loses_nothing():
    plain = lambda p: dist.Normal(p[0], p[1])
    logarithmic = lambda p: dist.LogNormal(p[0], p[1])
    point = jnp.array([0.3, 0.7])
    assert has_closed_form(logarithmic(point))
    squashed = lambda p: dist.TransformedDistribution(
        dist.Normal(p[0], p[1]), [dist.transforms.SigmoidTransform()]
    )
    wanted, *actual = fishers(point, plain, logarithmic, squashed)
    for matrix in actual:
        np.testing.assert_allclose(matrix, wanted, rtol=1e-12)


@pytest.mark.parametrize("after", [[], [dist.transforms.ExpTransform()]], ids=["plain", "then exp"])
def test_an_affine_map_of_a_normal_is_folded_into_it(after):
    """a + b N(m, s) = N(a + b m, |b| s), whatever fixed bijection follows; b may be negative."""

    def moved(p):
        base = dist.Normal(p[0] * jnp.ones(2), jnp.exp(p[1])).to_event(1)
        return dist.TransformedDistribution(
            base, [dist.transforms.AffineTransform(p[2], p[3]), *after]
        )

    def wanted(p):
        return dist.Normal(p[2] + p[3] * p[0] * jnp.ones(2), jnp.abs(p[3]) * jnp.exp(p[1]))

    point = jnp.array([0.5, -0.3, 1.2, -0.8])
    assert has_closed_form(moved(point))
    np.testing.assert_allclose(*fishers(point, moved, wanted), rtol=1e-10, atol=1e-12)


LOCATED = {
    "Laplace": dist.Laplace,
    "Cauchy": dist.Cauchy,
    "Logistic": dist.Logistic,
    "StudentT": lambda loc, scale: dist.StudentT(3.0, loc, scale),
    "StudentT with its df": lambda loc, scale: dist.StudentT(jnp.exp(scale), loc, scale),
}


@pytest.mark.parametrize("name", LOCATED)
def test_an_affine_map_is_folded_into_location_and_scale(name):
    """Expanded and in two dimensions, one scale of the map for all of them."""
    family = LOCATED[name]

    def moved(p):
        base = family(p[0], jnp.exp(p[1])).expand((3, 2)).to_event(1)
        return dist.TransformedDistribution(
            base, dist.transforms.AffineTransform(p[2] * jnp.arange(2.0), p[3])
        )

    def wanted(p):
        inner = family(p[0], jnp.exp(p[1]))
        loc = p[2] * jnp.arange(2.0) + p[3] * inner.loc
        df = {"df": inner.df} if isinstance(inner, dist.StudentT) else {}
        return type(inner)(**df, loc=loc, scale=-p[3] * inner.scale).expand((3, 2))

    point = jnp.array([0.5, -0.3, 1.2, -0.8])
    assert has_closed_form(moved(point))
    np.testing.assert_allclose(*fishers(point, moved, wanted), rtol=1e-10, atol=1e-12)


SCALED = {
    "HalfNormal": (lambda p: dist.HalfNormal(p[0]), lambda p: dist.HalfNormal(p[0] * p[1])),
    "HalfCauchy": (lambda p: dist.HalfCauchy(p[0]), lambda p: dist.HalfCauchy(p[0] * p[1])),
    "Exponential": (lambda p: dist.Exponential(p[0]), lambda p: dist.Exponential(p[0] / p[1])),
    "Gamma": (lambda p: dist.Gamma(p[2], p[0]), lambda p: dist.Gamma(p[2], p[0] / p[1])),
}


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_stretched_half_line_is_folded_into_the_scale(name, sign):
    """From a fixed end, in either direction."""
    base, wanted = SCALED[name]
    moved = lambda p: dist.TransformedDistribution(
        base(p), dist.transforms.AffineTransform(1.5, sign * p[1])
    )
    point = jnp.array([0.7, 1.8, 2.5])
    assert has_closed_form(moved(point))
    np.testing.assert_allclose(*fishers(point, moved, wanted), rtol=1e-10, atol=1e-12)
