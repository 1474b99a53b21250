"""The page of public names is what the docstrings say."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import api_page
import pytest


def test_the_page_is_up_to_date():
    written = api_page.PAGE.read_text(encoding="utf-8")
    assert written == api_page.page(), "run python tools/api_page.py"


@pytest.mark.parametrize("name", api_page.MODULES)
def test_every_name_says_what_it_is(name):
    text = api_page.section(name, "")
    assert "|  |" not in text
    assert text.count("\n") > 4
