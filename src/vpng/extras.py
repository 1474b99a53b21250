"""Optional parts of the library, and what to install for them."""

from enum import Enum
from importlib.util import find_spec


class Extra(Enum):
    """The extras of the package, each with the modules that it brings."""

    ARVIZ = ("arviz_base",)
    PLOT = ("matplotlib",)
    MODELS = ("sklearn",)
    PAPER = ("jsonschema", "matplotlib", "polars", "pooch", "rich", "sklearn", "typer")


class MissingExtraError(ImportError):
    """A part of the library was asked for whose extra is not installed."""


def require(part: str, extra: Extra) -> None:
    """Go on only if the modules of `extra` are installed; none of them is imported.

    Args:
        part: what needs them, for the message.
        extra: which extra brings them.

    Raises:
        MissingExtraError: naming the missing modules and the command that installs them.
    """
    missing = [module for module in extra.value if find_spec(module) is None]
    if missing:
        name = extra.name.lower()
        raise MissingExtraError(
            f"{part} needs {', '.join(missing)}: pip install 'vpng[{name}]'.", name=missing[0]
        )
