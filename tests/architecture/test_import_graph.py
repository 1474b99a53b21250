"""The sources' own imports, read without running them: downwards only, lazy ones too."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

LAYERS = (
    ("numerics",),
    ("version", "errors", "extras", "packed", "products", "random"),
    ("not_finite", "numpyro_names"),
    ("checks", "storage", "runtime"),
    ("distributed", "plot"),
    ("problem", "run"),
    ("objective", "fisher"),
    ("structure",),
    ("curvature", "damping", "problems"),
    ("kronecker", "posterior", "transform"),
    ("adaptive", "optimizers", "training"),
    ("numpyro",),
    ("diagnostics", "models"),
    ("paper",),
    ("__init__", "__main__"),
)
"""From the ground up: a room imports from itself and from rooms of lower layers."""

UNSTABLE = ("jax.core", "jax.extend", "jax.interpreters")
INTERNALS = {
    ("fisher/operator.py", "jax.extend.core"),
    ("kronecker/program.py", "jax.extend.core"),
    ("numerics/trees.py", "jax.core"),
    ("problem/base.py", "jax.interpreters"),
    ("random.py", "jax.extend.random"),
    ("runtime/simplified.py", "jax.extend.core"),
}
"""Which files import internals of JAX and NumPyro; nothing new is added."""

HEIGHT = {room: height for height, layer in enumerate(LAYERS) for room in layer}


def modules():
    return sorted((SOURCE / "vpng").rglob("*.py"))


def room_of(path):
    return path.relative_to(SOURCE / "vpng").with_suffix("").parts[0]


def imports(path):
    """Every (module, name) that a file imports at any depth."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: expected absolute imports, got a relative one"
            yield from ((node.module, alias.name) for alias in node.names)


def imported_rooms(path):
    for module, name in imports(path):
        parts = module.split(".")
        if parts[0] == "vpng":
            yield parts[1] if len(parts) > 1 else name


def test_every_room_has_a_layer():
    assert {room_of(path) for path in modules()} == set(HEIGHT)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_layers_import_downwards_only(path):
    own = room_of(path)
    above = {room for room in imported_rooms(path) if room != own and HEIGHT[room] >= HEIGHT[own]}
    assert not above, f"{own} imports {above}, which are not below it"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_private_name_crosses_modules(path):
    private = [
        f"{module}.{name}"
        for module, name in imports(path)
        if module.split(".")[0] == "vpng" and name and name.startswith("_") and name[1] != "_"
    ]
    assert not private


def test_internals_of_jax_and_numpyro_stay_where_they_are():
    found = {
        (str(path.relative_to(SOURCE / "vpng")), module)
        for path in modules()
        for module, _ in imports(path)
        if "._" in module or module.startswith(UNSTABLE)
    }
    assert found == INTERNALS
