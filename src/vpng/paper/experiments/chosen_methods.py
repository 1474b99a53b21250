"""Methods as they are named on the command line."""

from vpng.errors import expected
from vpng.plot.methods import Method


def parse_methods(text: str | None, allowed: tuple[Method, ...]) -> tuple[Method, ...]:
    """The methods named in a comma-separated list; all allowed ones for None."""
    if text is None:
        return allowed
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = {method.value: method for method in allowed}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise expected("--methods", f"names among {', '.join(known)}", repr(text))
    return tuple(dict.fromkeys(known[name] for name in names))
