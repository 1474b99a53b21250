"""What is optional: one line says what to install, and the core needs none of it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from vpng.extras import Extra

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
IMPORTED_AS = {"arviz-base": "arviz_base", "scikit-learn": "sklearn"}


def without(modules, code):
    """Run `code` in a process where `modules` cannot be imported."""
    hidden = f"import sys; sys.modules.update(dict.fromkeys({list(modules)}))\n"
    return subprocess.run(
        [sys.executable, "-c", hidden + code], capture_output=True, text=True, check=False
    )


def brought_by(extra):
    """The modules that an extra installs, those of the extras inside it too."""
    modules = set()
    for line in PROJECT["project"]["optional-dependencies"][extra]:
        if inner := re.match(r"vpng\[(.*)\]", line):
            modules |= set().union(*(brought_by(each) for each in inner[1].split(",")))
        else:
            name = re.match(r"[\w-]+", line)[0]
            modules.add(IMPORTED_AS.get(name, name))
    return modules


@pytest.mark.parametrize("extra", Extra)
def test_the_list_is_that_of_the_project(extra):
    assert brought_by(extra.name.lower()) == set(extra.value)


def test_the_core_works_without_any_extra():
    code = "import vpng, vpng.numpyro, vpng.diagnostics; vpng.problems.GaussianMean; vpng.fit"
    done = without(Extra.PAPER.value, code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            "import vpng; vpng.race",
            "vpng.paper needs jsonschema, matplotlib, polars, pooch, rich, sklearn, typer: "
            "pip install 'vpng[paper]'.",
        ),
        ("import vpng.models", "vpng.models needs sklearn: pip install 'vpng[models]'."),
        (
            "from vpng.diagnostics.figure import draw; draw(None)",
            "Diagnosis.plot needs matplotlib: pip install 'vpng[plot]'.",
        ),
    ],
)
def test_a_missing_extra_is_named_in_one_line(code, line):
    done = without(Extra.PAPER.value, code)
    assert done.stderr.strip().splitlines()[-1] == f"vpng.extras.MissingExtraError: {line}"


def test_the_command_says_what_to_install():
    done = without(["typer"], "from vpng.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr == "vpng: vpng.paper needs typer: pip install 'vpng[paper]'.\n"
