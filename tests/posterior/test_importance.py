"""Weights, their errors and the evidence, against closed forms."""

import numpy as np
import pytest
from scipy.stats import norm

from vpng.posterior.importance import bridge, imprecision


def test_errors_of_even_weights_are_those_of_independent_draws():
    draws = {"x": np.random.default_rng(0).normal(2.0, 3.0, size=(10_000, 4))}
    found = imprecision(draws, np.full(10_000, 1e-4))
    # A mean has 1 / sqrt(n), a deviation 1 / sqrt(2 n).
    assert found == pytest.approx(0.01, rel=0.05)


def test_errors_over_chains_count_chains_that_stand_still_once():
    rng = np.random.default_rng(3)
    still = np.tile(rng.normal(size=(500, 4)), (8, 1))
    even = np.full(4000, 1 / 4000)
    # Eight states of each chain say as much as one.
    assert imprecision({"x": still}, even, 500) == pytest.approx(1 / np.sqrt(500), rel=0.1)
    moving = {"x": rng.normal(size=(4000, 4))}
    assert imprecision(moving, even, 500) == pytest.approx(1 / np.sqrt(4000), rel=0.15)


def test_one_heavy_draw_far_out_is_noticed():
    rng = np.random.default_rng(1)
    draws, shares = rng.normal(size=10_000), np.full(10_000, 1e-4)
    draws[0], shares[0] = 12.0, 3e-3
    assert imprecision({"x": draws}, shares / shares.sum()) > 0.1


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_bridge_finds_the_evidence(shift):
    rng = np.random.default_rng(2)
    # The posterior is N(shift, 1) times e^3, the approximation N(0, 1.2^2).
    ratio = lambda z: 3.0 + norm.logpdf(z, shift, 1.0) - norm.logpdf(z, 0.0, 1.2)
    here, there = 1.2 * rng.normal(size=20_000), shift + rng.normal(size=20_000)
    # Five standard errors; the ratios have a deviation of about one.
    assert bridge(ratio(here), ratio(there)) == pytest.approx(3.0, abs=5 / np.sqrt(20_000))
