"""Any NumPyro model without a learning rate: vpng untouched against Adam at its best step size.

Every model of `zoo` is fitted with vpng's SVI as it comes and with NumPyro's SVI and Adam, five
step sizes, with ten particles, with NumPyro's one, and with as many as vpng takes: the best of
those settings counts, the best by steps for steps and the best by time for time; the ratios to Adam
with as many particles alone are reported too. All start from the same point. A run has arrived at
the first checkpoint within one nat of the best ELBO that anybody reached from that
start (for the autoencoder: per image). ELBOs are evaluated off the clock with the same random
numbers for all, compilation is off the clock too, and the time of one step is measured in turns, so
that a noisy machine is noisy for all. A setting that never arrived counts with its whole budget:
such a ratio is a lower bound, and is marked. One JSON object is printed; with --out it is
written there too, with a chart. Parts of the cases (--models) may run on a core each; --join puts
their reports together.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from vpng.storage.files import write_atomically
from zoo import choose
from zoo.chart import draw
from zoo.race import RATES, TOLERANCE, Budget, compete

NAME = "numpyro_models.json"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def noise(entry: dict[str, Any]) -> float:
    """What two final ELBOs may differ by: three standard errors and a tenth of a nat."""
    return 0.1 + 3.0 * entry["elbo_standard_error"]


def summary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    name = lambda entry: f"{entry['model']}/{entry['guide']}"
    worst = min(entries, key=lambda entry: entry["ratio_seconds"])
    return {
        "num_cases": len(entries),
        "geometric_mean_ratio_steps": geometric_mean([e["ratio_steps"] for e in entries]),
        "geometric_mean_ratio_seconds": geometric_mean([e["ratio_seconds"] for e in entries]),
        "same_particles": {
            quantity: geometric_mean([e["same_particles"][quantity] for e in entries])
            for quantity in ("ratio_steps", "ratio_seconds", "ratio_per_step")
        },
        "num_lower_bounds": sum(e["ratio_seconds_is"] == "at least" for e in entries),
        "worst_ratio_seconds": {"case": name(worst), "ratio": worst["ratio_seconds"]},
        "slower_than_adam": [name(e) for e in entries if e["ratio_seconds"] < 1.0],
        "lower_final_elbo": [name(e) for e in entries if e["final_elbo_gain"] < -noise(e)],
        "not_arrived": [
            name(e) for e in entries if e["ratio_steps_is"] in ("at most", "undecided")
        ],
        "all_finite": all(e["vpng"]["finite"] for e in entries),
    }


def write(report: dict[str, Any], directory: Path) -> None:
    """The report so far and its chart: a long run that is cut short leaves what it found."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAME
    text = json.dumps(report, indent=1) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))
    write_atomically(path.with_suffix(".png"), lambda temporary: draw(report, temporary))


def joined(directories: list[Path]) -> dict[str, Any]:
    """One report of the cases of several, which were run with the same settings."""
    reports = [json.loads((path / NAME).read_text()) for path in directories]
    entries = [entry for report in reports for entry in report["cases"]]
    settings = reports[0]["settings"]
    if any(report["settings"] != settings for report in reports):
        raise SystemExit("the reports have different settings and do not belong together")
    return {"summary": summary(entries), "cases": entries, "settings": settings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--quick", action="store_true", help="few steps: does it run at all?")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--adam-seconds", type=float, default=10.0)
    parser.add_argument("--adam-steps", type=int, default=Budget.adam_steps)
    parser.add_argument("--out", type=Path, help="directory for the JSON file and the chart")
    parser.add_argument(
        "--join", nargs="+", type=Path, help="no runs: the reports of these directories as one"
    )
    options = parser.parse_args()
    if options.join:
        report = joined(options.join)
        if options.out is not None:
            write(report, options.out)
        print(json.dumps(report["summary"], indent=1))
        return
    budget = Budget(
        adam_steps=options.adam_steps, adam_seconds=options.adam_seconds, seeds=options.seeds
    )
    if options.quick:
        budget = Budget(
            vpng_steps=60, adam_steps=300, adam_seconds=5.0, seeds=options.seeds, rounds=2
        )
    entries, report = [], {}
    for case in choose(options.models):
        began = time.perf_counter()
        say(case.name)
        entry = compete(case, budget, say)
        entries.append(entry)
        say(
            f"  steps {entry['vpng']['steps']:g} against {entry['adam']['steps']:g}, "
            f"ratio {entry['ratio_steps']:.1f} ({entry['ratio_steps_is']}); "
            f"seconds {entry['vpng']['seconds']:.3g} against {entry['adam']['seconds']:.3g}, "
            f"ratio {entry['ratio_seconds']:.2f} ({entry['ratio_seconds_is']}); "
            f"against as many particles {entry['same_particles']['ratio_seconds']:.2f}; "
            f"final ELBO {entry['final_elbo_gain']:+.2f}; "
            f"took {time.perf_counter() - began:.0f} s"
        )
        report = {
            "summary": summary(entries),
            "cases": entries,
            "settings": {"adam_rates": RATES, "tolerance": TOLERANCE, **vars(budget)},
        }
        if options.out is not None:
            write(report, options.out)
    print(json.dumps(report, indent=1))
    if not report["summary"]["all_finite"]:
        raise SystemExit("vpng showed a loss or a parameter that is not finite")


if __name__ == "__main__":
    main()
