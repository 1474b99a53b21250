"""A few cases of every target of the soak, the same ones every time."""

import tempfile
from pathlib import Path

import pytest
from fuzz_targets import TARGETS
from hypothesis import given, settings

pytestmark = pytest.mark.endurance

NUM_CASES = {"fit": 8, "model": 20, "checkpoint": 15, "command line": 25}


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_an_input_error(name):
    target = TARGETS[name]

    @settings(max_examples=NUM_CASES.get(name, 60))
    @given(target.cases)
    def check(case):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "folder"
            folder.mkdir()
            target.check(case, folder)

    check()
