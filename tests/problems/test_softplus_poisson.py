"""Counts with softplus rates: the density, its derivatives near rate zero, its Fisher factor."""

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats

from vpng.fisher.families import has_closed_form, whiten
from vpng.problems import SoftplusPoisson, counted
from vpng.problems.softplus_poisson import PoissonRow, log_softplus


def test_the_density_is_scipys(x64):
    outputs = np.linspace(-8.0, 30.0, 11)
    counts = np.arange(11)
    found = jax.jit(lambda t, count: SoftplusPoisson(t).log_prob(count))(outputs, counts)
    wanted = scipy.stats.poisson.logpmf(counts, np.log1p(np.exp(outputs)))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_data_bring_their_constant_with_them(x64):
    rng = np.random.default_rng(0)
    outputs, counts = rng.normal(size=(4, 6)), rng.integers(0, 10, (4, 6))
    density = jax.jit(lambda t, data: PoissonRow(t).log_prob(data))
    plain = density(outputs, counts)
    np.testing.assert_allclose(density(outputs, counted(counts.astype(np.uint8))), plain)
    assert plain.shape == (4,)


log_softplus_and_slope = jax.jit(jax.value_and_grad(log_softplus))


@pytest.mark.parametrize("t", [-20.0, -15.0001, -15.0, -14.9, -1.0, 0.0, 3.0, 40.0])
def test_the_logarithm_of_softplus_and_its_slope(x64, t):
    rate = np.log1p(np.exp(t))
    value, slope = log_softplus_and_slope(t)
    np.testing.assert_allclose(value, np.log(rate), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(slope, 1.0 / (1.0 + np.exp(-t)) / rate, rtol=1e-6)


@jax.jit
def density_and_derivatives(t, count):
    density = lambda t: SoftplusPoisson(t).log_prob(count)
    return *jax.value_and_grad(density)(t), jax.grad(jax.grad(density))(t)


@pytest.mark.parametrize("t", [-1e4, -200.0, -103.0, -88.0, 88.0, 1e4])
@pytest.mark.parametrize("count", [0.0, 9.0])
def test_nothing_overflows_in_single_precision(t, count):
    value, slope, curvature = density_and_derivatives(np.float32(t), np.float32(count))
    assert np.isfinite([value, slope, curvature]).all()
    if t < -80:
        assert slope == pytest.approx(count, abs=1e-6)


def test_the_fisher_factor_is_the_closed_form(x64):
    """In the output t the information is sigmoid(t)^2 / softplus(t)."""
    outputs = np.array([[-3.0, 0.0, 2.0], [5.0, -9.0, 0.5]])
    assert has_closed_form(PoissonRow(outputs))
    rows = lambda t: whiten(PoissonRow(t), PoissonRow(t)).reshape(2, -1)
    jacobian = np.asarray(jax.jit(jax.jacobian(rows))(outputs)).reshape(6, 6)
    wanted = np.diag((scipy.special.expit(outputs) ** 2 / np.logaddexp(0.0, outputs)).ravel())
    np.testing.assert_allclose(jacobian.T @ jacobian, wanted, atol=1e-12)


def test_the_fisher_factor_is_finite_at_rate_zero():
    rows = lambda t: whiten(PoissonRow(t), PoissonRow(t)).sum()
    slopes = jax.jit(jax.grad(rows))(np.full((1, 3), -150.0, np.float32))
    assert np.isfinite(slopes).all()


def test_log_factorials_of_bytes():
    counts = np.array([[0, 1, 9], [3, 255, 0]], np.uint8)
    wanted = scipy.special.gammaln(counts + 1.0).sum(axis=1)
    np.testing.assert_allclose(counted(counts).log_factorials, wanted, rtol=1e-6)
    assert counted(counts).counts.dtype == np.uint8
