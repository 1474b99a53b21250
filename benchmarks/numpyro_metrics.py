"""Which metric should the automatic rule follow? Every candidate on every model of `zoo`.

The rule, the guide, the start and the random numbers are the same; only the metric differs. A run
has arrived at the first checkpoint within one nat of the best ELBO that any metric reached from
that start; one that never did counts with all its steps. One JSON object is printed, and with --out
written.
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from vpng import Predictive, Variational
from vpng.fisher import AbstractMetric, BayesianNetwork, Exact
from vpng.numpyro import SVI, default_metric
from vpng.storage.files import write_atomically
from zoo import choose
from zoo.case import Case
from zoo.curves import Curve, Evaluator
from zoo.programs import Program
from zoo.race import TOLERANCE, vpng_run

DEFAULT = "BayesianNetwork + Divergence"
METRICS: dict[str, AbstractMetric] = {
    DEFAULT: default_metric(1),
    "BayesianNetwork": BayesianNetwork(Exact(with_misfit=True), 1),
    "Predictive": Predictive(Exact(with_misfit=True), 1),
    "Predictive + Variational": Predictive(Exact(with_misfit=True), 1)
    + Variational(num_particles=1),
    "Variational": Variational(num_particles=1),
}
"""Each from one draw of the latents a step, as the rule takes for such guides."""


def race(case: Case, num_steps: int, num_seeds: int) -> dict[str, Any]:
    """Steps to the target and final ELBO under every metric, the medians over seeds."""
    runs: dict[str, list[Curve]] = {}
    for name, metric in METRICS.items():
        make = lambda metric=metric: SVI(case.run, case.make_guide(), fisher=metric)
        program = Program(case, make)
        evaluator = Evaluator(case, program.svi.guide)
        runs[name] = [vpng_run(program, evaluator, s, num_steps)[0] for s in range(num_seeds)]
    best = [max(curves[seed].best for curves in runs.values()) for seed in range(num_seeds)]
    entry = {}
    for name, curves in runs.items():
        arrived = [
            curve.first_within(top - TOLERANCE) for curve, top in zip(curves, best, strict=True)
        ]
        entry[name] = {
            "steps": statistics.median(num_steps if at is None else at for at in arrived),
            "not_arrived": sum(at is None for at in arrived),
            "below_the_best": statistics.median(
                top - curve.final[0] for curve, top in zip(curves, best, strict=True)
            ),
        }
    return {"model": case.model, "guide": case.guide, "metrics": entry}


def summary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """For every metric: steps relative to the default in the geometric mean, and failures."""
    found = {}
    for name in METRICS:
        mine = [entry["metrics"][name] for entry in entries]
        default = [entry["metrics"][DEFAULT] for entry in entries]
        ratios = [m["steps"] / d["steps"] for m, d in zip(mine, default, strict=True)]
        found[name] = {
            "steps_over_default": math.exp(statistics.fmean(map(math.log, ratios))),
            "worst_steps_over_default": max(ratios),
            "best_steps_over_default": min(ratios),
            "runs_not_arrived": sum(m["not_arrived"] for m in mine),
            "cases_a_nat_below": sum(m["below_the_best"] > TOLERANCE for m in mine),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="directory for the JSON file")
    options = parser.parse_args()
    # Minibatches and networks have a rule of their own.
    cases = [case for case in choose(options.models) if not case.training]
    entries, report = [], {}
    for case in cases:
        entries.append(race(case, options.steps, options.seeds))
        found = entries[-1]["metrics"]
        words = "; ".join(
            f"{name} {m['steps']:g} ({-m['below_the_best']:+.2f})" for name, m in found.items()
        )
        print(f"{case.name}: {words}", file=sys.stderr, flush=True)
        report = {"summary": summary(entries), "cases": entries, "num_steps": options.steps}
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(report, indent=1) + "\n"
            write_atomically(
                options.out / "numpyro_metrics.json", lambda path, text=text: path.write_text(text)
            )
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
