"""The same answer on any number of devices, each curvature with its own way of dividing the work.

50 steps in float64. The sums over data are taken in another order, which changes the last digits
alone: 1e-10 leaves room for what 50 steps make of them.
"""

import pytest
from launch import launch, result

pytestmark = pytest.mark.endurance


@pytest.fixture(scope="module")
def comparisons():
    return result(launch("--devices", "8", "--plan", "quick"))


@pytest.mark.parametrize(
    "case",
    [
        "dense on 2 in_blocks",
        "dual on 4 in_blocks",
        "cg on 8 in_blocks",
        "block on 8 sharded all_data",
        "tridiagonal on 4",
        "svi on 3",
    ],
)
def test_devices_give_the_answer_of_one(comparisons, case):
    assert comparisons[case]["differs"] < 1e-10
    assert comparisons[case]["moved"] > 0.1
