"""Models of the size that people bring, each with its data and the guides that fit it."""

from large import chains, crossed, dense_models, groups
from zoo.case import Case

CASES: tuple[Case, ...] = (
    *groups.cases(),
    *crossed.cases(),
    *chains.cases(),
    *dense_models.cases(),
)
"""Every pair of a model and a guide."""


def choose(parts: list[str] | None) -> list[Case]:
    """The cases whose name contains one of `parts`, or all."""
    wanted = [part.lower() for part in parts or [""]]
    return [case for case in CASES if any(part in case.name.lower() for part in wanted)]


__all__ = ["CASES", "Case", "choose"]
