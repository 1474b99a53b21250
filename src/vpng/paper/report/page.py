"""One self-contained HTML page about a folder of results: nothing is fetched, ever."""

import base64
import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from vpng.paper.experiments.results import write_text
from vpng.paper.experiments.schema import find_results, load_results
from vpng.paper.report.charts import chart
from vpng.paper.report.verdict import Standing, verdict

TITLES = {
    "toy": "The bivariate Gaussian (Section 3)",
    "psd": "Positive semidefiniteness (Section 3.2)",
    "logistic": "Bayesian logistic regression (Section 5.1)",
    "vae": "Variational autoencoder (Section 5.2)",
    "vae-no-ema": "Autoencoder without moving averages (appendix)",
    "vmf": "Variational matrix factorisation (Section 5.3)",
}
"""Headings of the paper's experiments; any other has its name."""

SHORT = 24
"""Characters of a cell that is kept on one line."""

BADGES = {
    Standing.AHEAD: "ahead",
    Standing.BEHIND: "behind",
    Standing.LEVEL: "level",
    Standing.ONE_SEED: "level",
    Standing.NONE: "none",
}


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the page about `folder` to `out`, by default `report.html` inside of it.

    Raises:
        InputError: if `folder` holds no results.
    """
    return write_text(out or folder / "report.html", build_page(folder))


def build_page(folder: Path) -> str:
    """The page about the results at `folder` or right below it.

    Raises:
        InputError: if there are none.
    """
    found = find_results(folder)
    documents = {name: load_results(place) for name, place in found.items()}
    documents = dict(sorted(documents.items(), key=lambda item: _order(item[1]["experiment"])))
    assets = files("vpng.paper.report") / "assets"
    asset = lambda name: (assets / name).read_text("utf-8")
    charts = {name: chart(document) for name, document in documents.items()}
    # Inside a script element only "<" could end it early.
    data = json.dumps(charts, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    sections = [_section(name, documents[name], found[name]) for name in documents]
    parts = {
        "@STYLE@": asset("report.css"),
        "@SCRIPT@": asset("report.js"),
        "@DATA@": data,
        "@OVERVIEW@": _overview(documents),
        "@SECTIONS@": "\n".join(sections),
    }
    page = asset("report.html")
    for place, text in parts.items():
        page = page.replace(place, text)
    return page


def _order(experiment: str) -> tuple[int, str]:
    known = list(TITLES)
    return (known.index(experiment) if experiment in known else len(known), experiment)


def _title(document: Mapping[str, Any]) -> str:
    experiment = str(document["experiment"])
    return TITLES.get(experiment, experiment)


def _overview(documents: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, document in documents.items():
        found = verdict(document)
        first = found.sentences[0] if found.sentences else ""
        rows.append(
            f'<li><a href="#{escape(name)}">{escape(_title(document))}</a> {_badge(found.standing)}'
            f"<span>{escape(first)}</span></li>"
        )
    return f'<ul class="overview">{"".join(rows)}</ul>'


def _section(name: str, document: Mapping[str, Any], folder: Path) -> str:
    found = verdict(document)
    methods = dict.fromkeys(run["method"] for run in document["runs"])
    seeds = {run["seed"] for run in document["runs"]}
    counted = f"{len(methods)} methods, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    parts = [
        f'<section id="{escape(name)}">',
        f"<h2>{escape(_title(document))} {_badge(found.standing)}</h2>",
        f'<p class="what"><code>{escape(document["experiment"])}</code>'
        + (f": {counted}</p>" if document["headline"] else "</p>"),
        "<h3>Verdict</h3>",
        _list(found.sentences),
    ]
    if document["paper"]:
        parts += ["<h3>The paper</h3>", _list(document["paper"])]
    if document["table"]:
        parts += ["<h3>Table</h3>", _table(document["table"]["heads"], document["table"]["rows"])]
    parts += [
        "<h3>Curves</h3>",
        f'<div class="chart" data-chart="{escape(name)}"></div>',
        *_figures(folder),
        _grid(document),
        _details("Settings", _pairs(document["configuration"])),
        _details("Environment and how to repeat it", _repeat(document)),
        "</section>",
    ]
    return "\n".join(parts)


def _badge(standing: Standing) -> str:
    return f'<span class="badge {BADGES[standing]}">{escape(standing.value)}</span>'


def _list(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in sentences) + "</ul>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    lines = []
    for first, *rest in rows:
        cells = "".join(_cell(text) for text in rest)
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        '<div class="wide" tabindex="0" role="region" aria-label="table"><table>'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    short = ' class="short"' if len(text) <= SHORT else ""
    return f"<td{short}>{escape(text)}</td>"


def _figures(folder: Path) -> list[str]:
    figures = []
    for path in sorted(folder.glob("*.png")):
        coded = base64.b64encode(path.read_bytes()).decode()
        caption = path.stem.replace("_", " ")
        figures.append(
            f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{coded}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )
    return [] if not figures else ["<h3>Figures</h3>", *figures]


def _grid(document: Mapping[str, Any]) -> str:
    tables = []
    for method, points in document.get("grid", {}).items():
        if points:
            heads = list(points[0])
            rows = [[_shown(point.get(head)) for head in heads] for point in points]
            tables.append(f"<h4>{escape(method)}</h4>{_table(heads, rows)}")
    return _details("The whole grid, by the training score that decided", "".join(tables))


def _repeat(document: Mapping[str, Any]) -> str:
    environment = dict(document["environment"])
    packages = environment.pop("packages")
    command = shlex.join(environment.pop("command"))
    installed = " ".join(f"{name}=={number}" for name, number in packages.items())
    return (
        f"<p>The command that made these results:</p><pre>{escape(command)}</pre>"
        f"<p>The packages it ran with:</p><pre>{escape(installed)}</pre>{_pairs(environment)}"
    )


def _pairs(mapping: Mapping[str, Any]) -> str:
    return _table(["Name", "Value"], [[str(key), _shown(value)] for key, value in mapping.items()])


def _shown(value: Any) -> str:
    if isinstance(value, dict) and set(value) == {"mean", "std"}:
        return f"{value['mean']:.4g} ± {value['std']:.2g}"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value)
    return "–" if value is None else str(value)


def _details(summary: str, inside: str) -> str:
    if not inside:
        return ""
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"
