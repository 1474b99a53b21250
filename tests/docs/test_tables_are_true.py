"""The documents' small tables are what the commands beside them give."""

import re
from pathlib import Path

import pytest

from vpng.paper.experiments.registry import EXPERIMENTS
from vpng.paper.experiments.session import Session
from vpng.paper.experiments.store import markdown

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def table_in(page: str, name: str) -> str:
    """The table after the mark of an experiment."""
    return re.search(rf"<!-- table: {name} -->\n((?:\|.*\n)+)", page)[1]


def agree(written: str, found: str) -> bool:
    """The same words, and numbers equal to a few units of their last digit.

    Compilers round differently; a claim that is no longer true differs by far more.
    """
    if NUMBER.sub("#", written) != NUMBER.sub("#", found):
        return False
    pairs = zip(NUMBER.findall(written), NUMBER.findall(found), strict=True)
    return all(float(a) == pytest.approx(float(b), rel=0.01, abs=0.002) for a, b in pairs)


@pytest.fixture(scope="module", params=["toy", "psd"])
def reproduced(request):
    experiment = EXPERIMENTS[request.param]
    results = experiment.run(experiment.config(), Session())
    return request.param, results, markdown(experiment.table(results))


def test_the_table_is_what_the_command_gives(reproduced):
    name, _, found = reproduced
    written = table_in(PAGE, name)
    assert agree(written, found), f"docs/experiments.md says\n{written}\nbut it is\n{found}"


def test_the_readme_says_how_many_steps(reproduced):
    name, results, _ = reproduced
    if name == "toy":
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        steps = {method: entry["steps_to_1e-3"] for method, entry in results.summary.items()}
        assert "need hundreds of steps at their best step size; VPNG needs two" in " ".join(
            readme.split()
        )
        assert steps["vpng"] == 2
        assert all(100 < steps[method] < 1000 for method in ("gradient", "natural_gradient"))


@pytest.mark.parametrize(
    ("found", "same"),
    [
        ("| VPNG | 2 steps | 0.331 |\n", True),
        ("| VPNG | 3 steps | 0.33 |\n", False),
        ("| VPNG | 2 steps | 0.35 |\n", False),
        ("| Gradient | 2 steps | 0.33 |\n", False),
        ("| VPNG | more than 2 steps | 0.33 |\n", False),
    ],
)
def test_disagreement_is_seen(found, same):
    assert agree("| VPNG | 2 steps | 0.33 |\n", found) == same
