"""Two folders of results side by side: what was changed, and whether it helped."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from vpng.errors import expected
from vpng.paper.experiments.journal import differences
from vpng.paper.experiments.results import Table
from vpng.paper.experiments.schema import find_results, load_results
from vpng.paper.report.intervals import Interval, difference
from vpng.plot.methods import label_of


class Change(StrEnum):
    """What became of a number from A to B."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "within seed noise"
    UNKNOWN = "too few seeds to say"
    SAME = "the same bits"


@dataclass(frozen=True)
class Line:
    """One number of one method on both sides.

    Attributes:
        method: whose.
        metric: which.
        before: every seed's value in A.
        after: every seed's value in B.
        gap: B less A.
        change: what to make of it.
    """

    method: str
    metric: str
    before: list[float]
    after: list[float]
    gap: Interval
    change: Change


@dataclass(frozen=True)
class Comparison:
    """One experiment on both sides.

    Attributes:
        experiment: its name.
        settings: the settings that differ, A's and B's.
        packages: the versions that differ, A's and B's.
        lines: every method's numbers.
        only: methods that one side alone has.
    """

    experiment: str
    settings: dict[str, tuple[Any, Any]]
    packages: dict[str, tuple[Any, Any]]
    lines: list[Line]
    only: dict[str, str]

    def table(self) -> Table:
        """Heads and rows."""
        heads = ["Method", "Metric", "A", "B", "B - A", "95 % interval", "Verdict"]
        return heads, [
            [
                label_of(line.method),
                line.metric.replace("_", " ").replace("elbo", "ELBO"),
                _shown(line.before),
                _shown(line.after),
                f"{line.gap.value:+.3g}",
                "–" if line.gap.low is None else f"{line.gap.low:+.3g} to {line.gap.high:+.3g}",
                line.change.value,
            ]
            for line in self.lines
        ]

    def notes(self) -> list[str]:
        """What differs besides the numbers, in sentences."""
        notes = [
            f"Setting {key}: {old} in A, {new} in B." for key, (old, new) in self.settings.items()
        ]
        notes += [
            f"Package {key}: {old} in A, {new} in B." for key, (old, new) in self.packages.items()
        ]
        notes += [f"{label_of(method)} is in {side} alone." for method, side in self.only.items()]
        return notes or ["The settings and the packages are the same."]


def compare(a: Path, b: Path) -> list[Comparison]:
    """The experiments that both folders have, side by side.

    Raises:
        InputError: if a folder has no results, or the two have no experiment in common.
    """
    sides = []
    for folder in (a, b):
        documents = [load_results(place) for place in find_results(folder).values()]
        sides.append({document["experiment"]: document for document in documents})
    common = [name for name in sides[0] if name in sides[1]]
    if not common:
        raise expected(str(b), f"an experiment of {a}: {', '.join(sides[0])}", ", ".join(sides[1]))
    return [compare_documents(sides[0][name], sides[1][name]) for name in common]


def compare_documents(a: Mapping[str, Any], b: Mapping[str, Any]) -> Comparison:
    """Two documents of one experiment side by side."""
    before, after = _by_method(a), _by_method(b)
    lines = []
    for method in [method for method in before if method in after]:
        for metric, better in _metrics(a, before[method], after[method]).items():
            lines.append(_line(method, metric, better, before[method], after[method]))
    only = {method: "A" for method in before if method not in after}
    only |= {method: "B" for method in after if method not in before}
    packages = (side["environment"]["packages"] for side in (a, b))
    return Comparison(
        a["experiment"],
        differences(a["configuration"], b["configuration"]),
        differences(*packages),
        lines,
        only,
    )


def _by_method(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    names = dict.fromkeys(run["method"] for run in document["runs"])
    return {name: [run for run in document["runs"] if run["method"] == name] for name in names}


def _metrics(document: Mapping[str, Any], *sides: list[Mapping[str, Any]]) -> dict[str, int]:
    """The numbers that both sides have, with +1 where more is better and -1 where less is."""
    present = set.intersection(*(set(run["curves"]) for side in sides for run in side))
    headline = document["headline"]
    known = {"loss": -1}
    if headline:
        known[headline["metric"]] = 1 if headline["higher_is_better"] else -1
    finals = {
        name: known.get(name, 1)
        for name in sides[0][0]["curves"]
        if name in present and (name in known or name.endswith(("_elbo", "_auc")))
    }
    if headline and headline.get("goal") is not None:
        return {"iterations": -1}
    return finals | ({"seconds_per_iteration": -1} if {"seconds", "iteration"} <= present else {})


def _line(
    method: str,
    metric: str,
    better: int,
    before: list[Mapping[str, Any]],
    after: list[Mapping[str, Any]],
) -> Line:
    old, new = ([_value(run, metric) for run in side] for side in (before, after))
    gap = difference(new, old)
    bits = lambda side: sorted(run["params_sha256"] for run in side)
    if bits(before) == bits(after) and old == new:
        change = Change.SAME
    elif gap.beyond_noise is None:
        change = Change.UNKNOWN
    elif not gap.beyond_noise:
        change = Change.NOISE
    else:
        change = Change.BETTER if better * gap.value > 0 else Change.WORSE
    return Line(method, metric, old, new, gap, change)


def _value(run: Mapping[str, Any], metric: str) -> float:
    curves = run["curves"]
    last = lambda name: float("nan") if curves[name][-1] is None else float(curves[name][-1])
    if metric == "seconds_per_iteration":
        return last("seconds") / last("iteration")
    return last("iteration" if metric == "iterations" else metric)


def _shown(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.2g}" if len(values) > 1 else ""
    return f"{np.mean(values):.4g}{spread}"
