"""What the page's charts draw: bands over seeds for every curve, method and axis."""

from collections.abc import Mapping
from typing import Any

from vpng.paper.experiments.bands import Band, band
from vpng.plot.methods import label_of
from vpng.plot.palette import style_of

AXES = {"iteration": "iterations", "seconds": "seconds"}
UNSHOWN = {"standard_error", "rejected", "lambda_1", "lambda_2"}
"""Curves that are for the record, not for the eye."""


def chart(document: Mapping[str, Any]) -> dict[str, Any]:
    """The data of one chart: lines, metrics, axes and, for each, the bands."""
    if document["headline"] is None:
        return _curves_as_lines(document)
    headline, runs = document["headline"], document["runs"]
    names = list(dict.fromkeys(run["method"] for run in runs))
    present = set.intersection(*(set(run["curves"]) for run in runs))
    axes = [axis for axis in headline["axes"] if axis in present]
    others = [name for name in runs[0]["curves"] if name in present - UNSHOWN - set(AXES)]
    metrics = [headline["metric"], *(name for name in others if name != headline["metric"])]
    series = {
        metric: {axis: {name: _band(runs, name, axis, metric) for name in names} for axis in axes}
        for metric in metrics
    }
    labels = {name: name.replace("_", " ").replace("elbo", "ELBO") for name in metrics}
    labels[headline["metric"]] = headline["label"]
    return {
        "lines": _lines(names),
        "axes": [{"id": axis, "label": AXES.get(axis, axis)} for axis in axes],
        "metrics": [
            {
                "id": name,
                "label": labels[name],
                "higher": headline["higher_is_better"]
                if name == headline["metric"]
                else (name != "loss"),
            }
            for name in metrics
        ],
        "series": series,
    }


def _curves_as_lines(document: Mapping[str, Any]) -> dict[str, Any]:
    """Where no methods are compared: every curve is a line over the first."""
    runs = document["runs"]
    axis, *names = runs[0]["curves"]
    relabelled = [
        {"method": name, "curves": {axis: run["curves"][axis], "value": run["curves"][name]}}
        for name in names
        for run in runs
    ]
    return {
        "lines": _lines(names),
        "axes": [{"id": axis, "label": axis}],
        "metrics": [{"id": "value", "label": "smallest eigenvalue", "higher": None}],
        "series": {
            "value": {axis: {name: _band(relabelled, name, axis, "value") for name in names}}
        },
    }


def _lines(names: list[str]) -> list[dict[str, Any]]:
    lines = []
    for position, name in enumerate(names):
        style = style_of(name, position)
        lines.append(
            {
                "id": name,
                "label": label_of(name),
                "colour": style.colour,
                "dash": style.dash,
                "marker": style.marker,
            }
        )
    return lines


def _band(runs: Any, name: str, axis: str, metric: str) -> dict[str, Any] | None:
    found: Band | None = band(
        [(run["curves"][axis], run["curves"][metric]) for run in runs if run["method"] == name]
    )
    if found is None:
        return None
    rounded = lambda values: [float(f"{value:.6g}") for value in values]
    return {
        "x": rounded(found.x),
        "mean": rounded(found.mean),
        "low": rounded(found.low),
        "high": rounded(found.high),
        "count": found.count,
    }
