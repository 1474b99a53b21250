"""The size and shape of the sources at two revisions, as the table of the architecture page.

    python tools/before_after.py f0f02bf HEAD

Loops over steps are `while` statements whose test counts steps; weighted means are expressions of
the form (1 - w) a + w b; dependencies are those that everybody installs.
"""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator

COUNTS_STEPS = ("num_steps", "total", "last_step", "last")


def show(revision: str, path: str) -> str:
    """A file as it was."""
    shown = subprocess.run(
        ["git", "show", f"{revision}:{path}"], capture_output=True, text=True, check=True
    )
    return shown.stdout


def sources(revision: str) -> dict[str, str]:
    """All modules of the package by path."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", revision, "src/vpng"],
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [path for path in listed.stdout.split() if path.endswith(".py")]
    return {path: show(revision, path) for path in paths}


def nodes(trees: dict[str, ast.Module], kind: type | tuple[type, ...]) -> Iterator[ast.AST]:
    """Nodes of a kind in all trees."""
    for tree in trees.values():
        yield from (node for node in ast.walk(tree) if isinstance(node, kind))


def largest(trees: dict[str, ast.Module], kind: type | tuple[type, ...]) -> str:
    """The longest definition of a kind, with its lines."""
    found = max(nodes(trees, kind), key=lambda node: node.end_lineno - node.lineno)
    return f"`{found.name}`, {found.end_lineno - found.lineno + 1}"


def is_loop_over_steps(node: ast.While) -> bool:
    """Whether the test of a `while` counts steps."""
    names = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
    return bool(names.intersection(COUNTS_STEPS))


def is_weighted_mean(node: ast.BinOp) -> bool:
    """Whether a sum has a factor `1 - w`."""
    if not isinstance(node.op, ast.Add):
        return False
    factors = [
        side.left
        for side in (node.left, node.right)
        if isinstance(side, ast.BinOp) and isinstance(side.op, ast.Mult)
    ]
    return any(
        isinstance(factor, ast.BinOp)
        and isinstance(factor.op, ast.Sub)
        and isinstance(factor.left, ast.Constant)
        and factor.left.value == 1
        for factor in factors
    )


def facts(revision: str) -> dict[str, str]:
    """The rows of the table for one revision."""
    texts = sources(revision)
    trees = {path: ast.parse(text) for path, text in texts.items()}
    project = tomllib.loads(show(revision, "pyproject.toml"))["project"]
    loops = [node for node in nodes(trees, ast.While) if is_loop_over_steps(node)]
    means = [node for node in nodes(trees, ast.BinOp) if is_weighted_mean(node)]
    core = [
        len(text.splitlines())
        for path, text in texts.items()
        if path.split("/")[2] not in ("paper", "models", "experiments", "cli", "report", "datasets")
    ]
    constants = [
        target
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant | ast.BinOp)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.isupper()
    ]
    return {
        "files": str(len(texts)),
        "lines": str(sum(len(text.splitlines()) for text in texts.values())),
        "lines without experiments and estimators": str(sum(core)),
        "lines of the longest file": str(max(len(text.splitlines()) for text in texts.values())),
        "loops over steps": str(len(loops)),
        "weighted means written out": str(len(means)),
        "named constants": str(len(constants)),
        "dependencies": str(len(project["dependencies"])),
        "largest function": largest(trees, (ast.FunctionDef, ast.AsyncFunctionDef)),
        "largest class": largest(trees, ast.ClassDef),
    }


def main() -> None:
    """Print the table."""
    before, after = (facts(revision) for revision in sys.argv[1:3])
    print("| | before | after |\n| --- | --- | --- |")
    for name, value in before.items():
        print(f"| {name} | {value} | {after[name]} |")


if __name__ == "__main__":
    main()
