"""Intervals against scipy's own, and their coverage of nothing."""

import numpy as np
import pytest
from scipy import stats

from vpng.paper.report.intervals import difference, factor


@pytest.mark.parametrize("sizes", [(2, 2), (3, 7), (10, 4)])
def test_the_difference_is_welchs(sizes):
    generator = np.random.default_rng(0)
    a, b = (generator.normal(k, 1.0 + k, size) for k, size in enumerate(sizes))
    ours = difference(a, b)
    theirs = stats.ttest_ind(a, b, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert ours.value == pytest.approx(a.mean() - b.mean())
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))
    assert ours.beyond_noise == (theirs.pvalue < 0.05)


def test_a_single_run_has_no_interval():
    assert difference([1.0], [0.5, 0.6]) == (pytest.approx(0.45), None, None)
    assert difference([1.0], [0.5]).beyond_noise is None


def test_runs_without_spread_have_a_sharp_difference():
    assert difference([2.0, 2.0], [1.0, 1.0]) == (1.0, 1.0, 1.0)
    assert difference([2.0, 2.0], [1.0, 1.0]).beyond_noise
    assert not difference([2.0, 2.0], [2.0, 2.0]).beyond_noise


def test_the_factor_is_a_ratio_of_geometric_means():
    times = factor([1.0, 4.0], [6.0, 6.0])
    assert times.value == pytest.approx(3.0)
    assert times.low < 3.0 < times.high
    assert factor([6.0, 6.0], [1.0, 4.0]).value == pytest.approx(1.0 / 3.0)
