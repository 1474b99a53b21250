"""Seconds to the answer, model by model; open where the answer is more than a nat off."""

from pathlib import Path
from typing import Any

from vpng.plot.palette import STYLES

SHOWN = {
    "vpng": "vpng",
    "vpng_again": "vpng, second run",
    "vpng_next": "vpng, next process, cache on disk",
    "vpng_before": "vpng before",
    "adam": "NumPyro, Adam 0.01, 10,000 steps",
    "best_adam": "NumPyro, Adam, best rate, until within a nat",
    "nuts": "NUTS, 500 + 1,000",
    "deterministic_advi": "deterministic ADVI, mean field",
    "pathfinder": "Pathfinder",
}


def draw(report: dict[str, Any], cores: str, path: Path, clock: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    cases = report["cores"][cores]
    names = sorted(cases, key=lambda name: report["latents"][name])
    figure = Figure(figsize=(9.0, 1.8 + 0.34 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    own = [(style.colour, style.marker) for style in STYLES.values()]
    styles = [*own, *(("0.2", marker) for marker in "v<*>")]
    for (colour, marker), (contender, label) in zip(styles, SHOWN.items(), strict=False):
        points = [(row, cases[name].get(contender, {})) for row, name in enumerate(names)]
        known = [(row, entry) for row, entry in points if clock in entry]
        if not known:
            continue
        full = [_is_near(entry, cases[names[row]]) for row, entry in known]
        axes.scatter(
            [entry[clock] for _, entry in known],
            [row for row, _ in known],
            s=42,
            marker=marker,
            edgecolors=colour,
            facecolors=[colour if near else "none" for near in full],
            label=label,
        )
    axes.set_yticks(range(len(names)), [f"{n} ({report['latents'][n]})" for n in names], fontsize=8)
    axes.set_xscale("log")
    of = "seconds" if clock == "seconds" else "seconds of the processor"
    axes.set_xlabel(f"{of} from the call to the answer, compiling included, {cores} core(s)")
    axes.grid(axis="x", color="0.9")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)


def _is_near(entry: dict[str, Any], found: dict[str, dict[str, Any]]) -> bool:
    """Whether an ELBO is within a nat of the best; draws have none, and count as near."""
    if entry.get("elbo") is None:
        return True
    best = max(other["elbo"] for other in found.values() if other.get("elbo") is not None)
    return best - entry["elbo"] <= 1.0
