"""Models that people know, each with its data and the guides that fit it."""

from zoo import hierarchies, latent_variables, networks, processes, regressions
from zoo.case import Case

CASES: tuple[Case, ...] = (
    *regressions.cases(),
    *hierarchies.cases(),
    *processes.cases(),
    *latent_variables.cases(),
    *networks.cases(),
)
"""Every pair of a model and a guide."""


def choose(parts: list[str] | None) -> list[Case]:
    """The cases whose name contains one of `parts`, or all; exits with their names if none does."""
    wanted = [part.lower() for part in parts or [""]]
    cases = [case for case in CASES if any(part in case.name.lower() for part in wanted)]
    if not cases:
        raise SystemExit(f"no case matches; there are {', '.join(case.name for case in CASES)}")
    return cases


__all__ = ["CASES", "Case", "choose"]
