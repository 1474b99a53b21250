"""Bands over seeds: the mean and spread where all curves are."""

import numpy as np
import pytest

from vpng.paper.experiments.bands import MOST_POINTS, band


def test_curves_on_one_axis_have_their_mean_and_standard_deviation():
    values = np.array([[1.0, 2.0, 4.0], [3.0, 2.0, 0.0]])
    found = band([([1, 2, 3], row) for row in values])
    np.testing.assert_array_equal(found.x, [1, 2, 3])
    np.testing.assert_allclose(found.mean, values.mean(axis=0))
    np.testing.assert_allclose(found.high - found.mean, values.std(axis=0, ddof=1))
    assert found.count == 2


def test_curves_of_different_length_are_compared_where_both_are():
    found = band([([0.0, 2.0, 8.0], [0.0, 2.0, 8.0]), ([1.0, 5.0], [1.0, 5.0])])
    assert (found.x[0], found.x[-1]) == (1.0, 5.0)
    np.testing.assert_allclose(found.mean, found.x, err_msg="both curves are the identity")
    np.testing.assert_allclose(found.low, found.high)


def test_missing_numbers_are_left_out():
    found = band([([1, 2, 3], [1.0, None, 3.0])])
    np.testing.assert_array_equal(found.x, [1, 3])
    assert band([([1, 2], [None, float("nan")])]) is None
    assert band([([1, 2], [0.0, 0.0]), ([3, 4], [0.0, 0.0])]) is None


def test_long_curves_are_thinned_and_keep_their_ends():
    x = np.arange(10_000.0)
    found = band([(x, x**2)])
    assert len(found.x) == MOST_POINTS
    assert (found.mean[0], found.mean[-1]) == (0.0, pytest.approx(9999.0**2))
