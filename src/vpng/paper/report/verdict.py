"""Who wins, by how much, and whether that is more than the noise of the seeds: in plain words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from vpng.paper.experiments.crossing import first_crossing
from vpng.paper.experiments.results import Headline
from vpng.paper.report.intervals import Interval, difference, factor
from vpng.plot.methods import is_vpng, label_of

AMOUNTS = {"seconds": "seconds", "iteration": "steps"}
FEWER = {"seconds": "less time", "iteration": "fewer steps"}
MORE = {"seconds": "more time", "iteration": "more steps"}


class Standing(StrEnum):
    """How VPNG fared."""

    AHEAD = "VPNG is ahead"
    BEHIND = "VPNG is behind"
    LEVEL = "No clear winner"
    ONE_SEED = "One seed: no error bars"
    NONE = "No comparison"


@dataclass(frozen=True)
class Verdict:
    """What the data say.

    Attributes:
        standing: how VPNG fared against the best of the other methods.
        sentences: the same in words, with the numbers.
    """

    standing: Standing
    sentences: list[str]


@dataclass(frozen=True)
class _Side:
    """The runs of one method."""

    name: str
    runs: list[Mapping[str, Any]]
    headline: Headline

    @property
    def label(self) -> str:
        return label_of(self.name)

    @property
    def finals(self) -> list[float]:
        """The last value of each run; the worst possible for a run that ended without one."""
        worst = -np.inf if self.headline.higher_is_better else np.inf
        values = [run["curves"][self.headline.metric][-1] for run in self.runs]
        return [worst if value is None else value for value in values]

    @property
    def score(self) -> float:
        """The mean of the finals, higher is better."""
        mean = float(np.mean(self.finals))
        return mean if self.headline.higher_is_better else -mean

    def shown(self) -> str:
        """Mean and standard deviation over the seeds."""
        values = np.asarray(self.finals)
        if not np.isfinite(values).all():
            return "not finite"
        return f"{values.mean():.4g}" + (f" ± {values.std(ddof=1):.2g}" if values.size > 1 else "")


def verdict(document: Mapping[str, Any]) -> Verdict:
    """What a document of results says about its methods."""
    findings = list(document.get("findings", []))
    if document["headline"] is None:
        return Verdict(Standing.NONE, findings)
    headline = Headline(**{**document["headline"], "axes": tuple(document["headline"]["axes"])})
    names = dict.fromkeys(run["method"] for run in document["runs"])
    sides = [
        _Side(name, [run for run in document["runs"] if run["method"] == name], headline)
        for name in names
    ]
    ours = [side for side in sides if is_vpng(side.name)]
    others = [side for side in sides if not is_vpng(side.name)]
    if not ours or not others:
        listed = ", ".join(f"{side.label} {side.shown()}" for side in sides)
        return Verdict(Standing.NONE, [*findings, f"Final {headline.label}: {listed}."])
    champion = max(ours, key=lambda side: side.score)
    if headline.goal is not None:
        return _to_the_goal(champion, others, headline, headline.goal, findings)
    return _at_the_end(ours, others, headline, findings)


def _at_the_end(
    ours: Sequence[_Side], others: Sequence[_Side], headline: Headline, findings: list[str]
) -> Verdict:
    ours = sorted(ours, key=lambda side: -side.score)
    ranking = sorted([*ours, *others], key=lambda side: -side.score)
    listed = ", ".join(f"{side.label} {side.shown()}" for side in ranking)
    sentences = [f"Final {headline.label}, best first: {listed}."]
    rival = max(others, key=lambda side: side.score)
    standings = []
    for side in ours:
        standing, words = _against(side, rival, headline)
        standings.append(standing)
        sentences += words
    for other in others:
        sentences += _race(ours[0], other, headline)
    return Verdict(standings[0], [*sentences, *findings])


def _against(ours: _Side, rival: _Side, headline: Headline) -> tuple[Standing, list[str]]:
    """How one method ends compared with the best of the others."""
    broken = [side for side in (ours, rival) if not np.isfinite(side.finals).all()]
    if broken:
        standing = Standing.BEHIND if ours in broken else Standing.AHEAD
        return standing, [
            f"{side.label} has runs that ended without a finite {headline.label}."
            for side in broken
        ]
    sign = 1.0 if headline.higher_is_better else -1.0
    gap = difference(sign * np.asarray(ours.finals), sign * np.asarray(rival.finals))
    ahead = gap.value > 0.0
    seeds = _seeds(ours, rival)
    if gap.beyond_noise is None:
        standing = Standing.ONE_SEED
        noise = f"{seeds}, so nothing can be said about the noise"
    else:
        standing, word = Standing.LEVEL, "within"
        if gap.beyond_noise:
            standing, word = (Standing.AHEAD if ahead else Standing.BEHIND), "more than"
        noise = f"95 % interval {_ends(gap, not ahead)}, {seeds}: {word} the noise of the seeds"
    where = "ahead of" if ahead else "behind"
    return standing, [
        f"{ours.label} ends {abs(gap.value):.3g} {where} {rival.label}, the best of the others "
        f"({noise})."
    ]


def _to_the_goal(
    champion: _Side,
    others: Sequence[_Side],
    headline: Headline,
    goal: float,
    findings: list[str],
) -> Verdict:
    axis = headline.axes[0]
    sentences, factors = [], []
    mine = _crossings(champion, axis, goal)
    for other in others:
        theirs = _crossings(other, axis, goal)
        if mine is None or theirs is None:
            late = champion.label if mine is None else other.label
            sentences.append(f"{late} does not reach a {headline.label} of {goal:g} in every run.")
            factors.append(np.nan if mine is None else np.inf)
            continue
        times = factor(mine, theirs)
        factors.append(times.value)
        sentences.append(
            f"To a {headline.label} of {goal:g}, {champion.label} needs {np.mean(mine):.3g} "
            f"{AMOUNTS[axis]} and {other.label} {np.mean(theirs):.4g}: {_times(times, axis)}, "
            f"{_seeds(champion, other)}."
        )
    if any(np.isnan(factors)) or min(factors) < 1.0:
        standing = Standing.BEHIND
    else:
        standing = Standing.AHEAD if min(factors) > 1.0 else Standing.LEVEL
    return Verdict(standing, [*sentences, *findings])


def _race(champion: _Side, other: _Side, headline: Headline) -> list[str]:
    """How much sooner one of the two reaches the level that every run of both reaches."""
    sign = 1.0 if headline.higher_is_better else -1.0
    runs = [*champion.runs, *other.runs]
    tops = [_best(run, headline.metric, sign) for run in runs]
    reached = [sign * top for top in tops if top is not None]
    if len(reached) < len(runs):
        return [f"Some runs of {champion.label} or {other.label} have no finite {headline.label}."]
    level = sign * min(reached)
    parts = []
    for axis in headline.axes:
        if axis not in AMOUNTS or any(axis not in run["curves"] for run in runs):
            continue
        mine, theirs = (_crossings(side, axis, level) for side in (champion, other))
        if mine is None or theirs is None:
            continue
        times = factor(mine, theirs)
        parts.append(_times(times, axis))
    if not parts:
        return []
    return [
        f"To the {headline.label} that every run of both reaches, {level:.4g}, {champion.label} "
        f"needs {' and '.join(parts)} than {other.label}."
    ]


def _crossings(side: _Side, axis: str, level: float) -> list[float] | None:
    """Where each run first reaches `level`; None if one of them does not."""
    found = [_crossing(run, side.headline, axis, level) for run in side.runs]
    reached = [place for place in found if place is not None]
    return reached if len(reached) == len(found) else None


def _crossing(run: Mapping[str, Any], headline: Headline, axis: str, level: float) -> float | None:
    """Where a run first reaches `level`."""
    sign = 1.0 if headline.higher_is_better else -1.0
    curves = run["curves"]
    rising = [None if value is None else sign * value for value in curves[headline.metric]]
    found = first_crossing(curves[axis], rising, sign * level)
    return None if found is None else max(found, 1e-12)


def _best(run: Mapping[str, Any], metric: str, sign: float) -> float | None:
    values = [value for value in run["curves"][metric] if value is not None]
    return max(values, key=lambda value: sign * value) if values else None


def _times(times: Interval, axis: str) -> str:
    """The factor in words, with its interval and whether that holds one."""
    value, low, high = times
    words = FEWER[axis]
    if value < 1.0:
        words = MORE[axis]
        value, low, high = 1.0 / value, high and 1.0 / high, low and 1.0 / low
    text = f"{value:.3g} times {words}"
    if low is None or high is None:
        return text
    noise = ", within the noise" if low < 1.0 < high else ""
    return f"{text} (95 % interval {low:.3g} to {high:.3g}{noise})"


def _ends(gap: Interval, flipped: bool) -> str:
    ends = sorted(-end if flipped else end for end in (gap.low, gap.high) if end is not None)
    return " to ".join(f"{end:.3g}" for end in ends)


def _seeds(champion: _Side, other: _Side) -> str:
    count = min(len(champion.runs), len(other.runs))
    return f"{count} seeds" if count > 1 else "one seed"
