"""Where curves reach a level, against cases worked out by hand."""

import pytest

from vpng.paper.experiments.crossing import first_crossing


@pytest.mark.parametrize(
    ("values", "level", "place"),
    [
        ([0.0, 1.0, 2.0], 1.0, 2.0),
        ([0.0, 1.0, 3.0], 2.0, 3.0),
        ([0.0, 2.0, 0.0], 1.0, 1.5),
        ([5.0, 1.0, 7.0], 4.0, 1.0),
        ([0.0, None, 2.0], 1.0, 2.5),
        ([0.0, float("nan"), 2.0], 1.0, 2.5),
        ([0.0, float("-inf"), 2.0], 1.0, 2.5),
        ([0.0, 0.5, 0.9], 1.0, None),
        ([None, None, None], 0.0, None),
    ],
)
def test_the_first_crossing_is_interpolated(values, level, place):
    assert first_crossing([1.0, 2.0, 4.0], values, level) == place
