"""Sums and library calls are the same product."""

import numpy as np
import pytest

from vpng.products import product


@pytest.mark.parametrize(
    ("rows", "terms", "columns"), [(1, 1, 1), (3, 5, 2), (16, 16, 16), (4, 17, 3), (40, 16, 40)]
)
def test_product(rows, terms, columns):
    generator = np.random.default_rng(0)
    left = generator.normal(size=(rows, terms)).astype(np.float32)
    right = generator.normal(size=(terms, columns)).astype(np.float32)
    np.testing.assert_allclose(product(left, right), left @ right, rtol=1e-4, atol=1e-5)
