"""Writes docs/api.md: every public name with the first sentence of its docstring.

    python tools/api_page.py

A test compares the page with what this makes, so that neither can drift.
"""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

MODULES = {
    "vpng": "what most programs need",
    "vpng.numpyro": "the front door for NumPyro models",
    "vpng.optimizers": "ready optimizers: direction, rule and step",
    "vpng.models": "scikit-learn estimators",
    "vpng.problems": "ready problems, and parts for your own",
    "vpng.training": "the loop, checkpoints, the guard",
    "vpng.transform": "optax transformations that give a direction",
    "vpng.fisher": "metrics, estimators and operators",
    "vpng.curvature": "solvers with a metric",
    "vpng.kronecker": "curvature for networks",
    "vpng.adaptive": "steps without a learning rate",
    "vpng.diagnostics": "one point looked at",
    "vpng.distributed": "several devices and processes",
    "vpng.datasets": "data, verified",
    "vpng.report": "results as a page",
}

HEAD = """# Public names

Every public name, by module, with the first sentence of its docstring; `help(vpng.fit)` shows
the rest. This page is written by `tools/api_page.py`.
"""


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring, on one line; what a plain value is instead."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing) or isinstance(thing, ModuleType)):
        return f"A value of type `{type(thing).__name__}`."
    paragraph = (inspect.getdoc(thing) or "").split("\n\n")[0]
    line = " ".join(paragraph.split())
    # Not after "eq.", which begins the name of an equation.
    sentence = re.split(r"(?<=(?<!eq)\.) ", line, maxsplit=1)[0]
    return sentence.replace("|", "\\|")


def section(name: str, about: str) -> str:
    """The names of one module as a table."""
    module = importlib.import_module(name)
    shown = [public for public in module.__all__ if not public.startswith("__")]
    rows = [f"| `{public}` | {first_sentence(getattr(module, public))} |" for public in shown]
    return "\n".join([f"## {name}: {about}", "", "| name | what it is |", "| --- | --- |", *rows])


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, "\n\n".join(section(*pair) for pair in MODULES.items()), ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
