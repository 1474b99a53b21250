"""The dispersion information of the negative binomial against direct summation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from vpng.fisher.quadrature import negative_binomial_dispersion_information

GRID = [(m, r) for m in (1e-3, 0.1, 1.0, 30.0, 1e3) for r in (1e-2, 0.3, 1.0, 20.0, 300.0)]


def by_summation(mean: float, dispersion: float) -> float:
    """sum_x p(x) score(x)^2, score = psi(r + x) - psi(r) + log(r / (r + m)) + (m - x) / (r + m).

    The sum stops where the tail holds less than 1e-15 of the probability. psi(r + x) - psi(r) is
    the partial sum of 1 / (r + j), which keeps it accurate.
    """
    m, r = mean, dispersion
    last = int(stats.nbinom.isf(1e-15, r, r / (r + m))) + 50
    x = np.arange(last + 1)
    mass = stats.nbinom.pmf(x, r, r / (r + m))
    digamma_step = np.concatenate([[0.0], np.cumsum(1.0 / (r + x[:-1]))])
    score = digamma_step - np.log1p(m / r) + (m - x) / (r + m)
    return float(np.sum(mass * score**2))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("mean", "dispersion"), GRID)
def test_quadrature_equals_the_sum(mean, dispersion):
    actual = float(
        negative_binomial_dispersion_information(jnp.float64(mean), jnp.float64(dispersion))
    )
    assert actual == pytest.approx(by_summation(mean, dispersion), rel=2e-5)


@pytest.mark.parametrize(("mean", "dispersion"), GRID)
def test_single_precision(mean, dispersion):
    """Near the Poisson limit it is a small difference of terms of size m / (r (r + m)).

    Rounding leaves an error of a few units of single precision relative to those terms.
    """
    m, r = jnp.float32(mean), jnp.float32(dispersion)
    value = negative_binomial_dispersion_information(m, r)
    assert value.dtype == jnp.float32
    terms = mean / (dispersion * (dispersion + mean))
    wanted = by_summation(mean, dispersion)
    assert float(value) == pytest.approx(wanted, rel=1e-3, abs=1e-6 * terms)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dispersion", [1e-4, 1e-6])
@pytest.mark.parametrize("mean", [1e-2, 1.0, 1e6])
def test_tiny_dispersion(mean, dispersion):
    """r -> 0 at fixed m: X is zero with probability about 1 + r log r, so I_rr -> log-like / r.

    Oracle: I_rr = E[psi'(r) - psi'(r + X)] - 1/r + 1/(r + m) summed by the survival function,
    E[psi'(r) - psi'(r + X)] = sum_j P(X > j) / (r + j)^2.
    """
    m, r = mean, dispersion
    j = np.concatenate(
        [np.arange(200_000), np.unique(np.geomspace(2e5, 1e9, 4000).astype(np.int64))]
    )
    survival = stats.nbinom.sf(j, r, r / (r + m))
    terms = survival / (r + j) ** 2
    head = terms[:200_000].sum()
    tail = np.trapezoid(terms[200_000:], j[200_000:])
    # P(X > 0) / r^2 - 1/r + 1/(r + m) cancels: P(X > 0) = 1 - (r / (r + m))^r.
    first = -np.expm1(r * np.log(r / (r + m))) / r**2
    wanted = first - m / (r * (r + m)) + (head - terms[0]) + tail
    actual = float(negative_binomial_dispersion_information(jnp.float64(m), jnp.float64(r)))
    assert actual == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("mean", [1e-30, 1.0, 1e12])
@pytest.mark.parametrize("dispersion", [1e-12, 1.0, 1e12])
def test_extremes_are_finite_and_not_negative(mean, dispersion):
    value = negative_binomial_dispersion_information(jnp.float32(mean), jnp.float32(dispersion))
    assert np.isfinite(float(value))
    assert float(value) >= 0.0


def test_shapes_broadcast():
    value = jax.eval_shape(
        negative_binomial_dispersion_information, jnp.ones((3, 1)), jnp.ones((2,))
    )
    assert value.shape == (3, 2)


def test_the_oracle_itself():
    """The score has mean zero: sum p = 1 and sum p score = 0 for the summation above."""
    m, r = 3.0, 0.7
    x = np.arange(2000)
    mass = stats.nbinom.pmf(x, r, r / (r + m))
    score = special.digamma(r + x) - special.digamma(r) - np.log1p(m / r) + (m - x) / (r + m)
    assert abs(np.sum(mass * score)) < 1e-10
