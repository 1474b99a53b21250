"""Writes docs/api.md: every public name with the first sentence of its docstring.

    python tools/api_page.py

A test compares the page with what this makes, so that neither can drift.
"""

import ast
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).parents[1] / "docs" / "api.md"

MODULES = {
    "vpng": "what most programs need",
    "vpng.numpyro": "the front door for NumPyro models",
    "vpng.posterior": "a posterior with its errors and a verdict",
    "vpng.optimizers": "ready optimizers: direction, rule and step",
    "vpng.models": "scikit-learn estimators (extra `models`)",
    "vpng.problems": "ready problems, and parts for your own",
    "vpng.training": "the loop, checkpoints, the guard",
    "vpng.transform": "optax transformations that give a direction",
    "vpng.fisher": "metrics, estimators and operators",
    "vpng.curvature": "solvers with a metric",
    "vpng.kronecker": "curvature for networks",
    "vpng.adaptive": "steps without a learning rate",
    "vpng.diagnostics": "one point looked at",
    "vpng.distributed": "several devices and processes",
    "vpng.paper.datasets": "data, verified (extra `paper`)",
    "vpng.paper.report": "results as a page (extra `paper`)",
}

HEAD = """# Public names

Every public name, by module, with the first sentence of its docstring; `help(vpng.fit)` shows
the rest. This page is written by `tools/api_page.py`.
"""


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = inspect.cleandoc(text).split("\n\n")[0]
    line = " ".join(paragraph.split())
    # Not after "eq.", which begins the name of an equation.
    sentence = re.split(r"(?<=(?<!eq)\.) ", line, maxsplit=1)[0]
    return sentence.replace("|", "\\|")


def documented(public: str, module: ModuleType) -> str:
    """What a name's docstring says; that of a value is below its assignment, for readers alone."""
    thing = getattr(module, public)
    has_its_own = inspect.isclass(thing) or inspect.isroutine(thing) or inspect.ismodule(thing)
    return (inspect.getdoc(thing) if has_its_own else None) or below(public, module)


def below(public: str, module: ModuleType) -> str:
    """The string after `public = ...`, wherever in the module's package that is."""
    for file in sorted(Path(str(module.__file__)).parent.rglob("*.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        for statement, after in pairwise(body):
            named = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
            is_value = isinstance(statement, ast.Assign | ast.AnnAssign) and named[0] == public
            if is_value and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return str(after.value.value)
    return ""


def section(name: str, about: str) -> str:
    """The names of one module as a table."""
    module = importlib.import_module(name)
    shown = [public for public in module.__all__ if not public.startswith("__")]
    rows = [f"| `{public}` | {first_sentence(documented(public, module))} |" for public in shown]
    return "\n".join([f"## {name}: {about}", "", "| name | what it is |", "| --- | --- |", *rows])


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, "\n\n".join(section(*pair) for pair in MODULES.items()), ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
