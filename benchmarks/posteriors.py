"""Can the posterior be trusted? `vpng.numpyro.infer` against long runs of NUTS, model by model.

Every model of `zoo`, of its textbooks and of `large` whose truth is known (`zoo/truth.json`;
--truth runs NUTS for those that are missing) is given to `infer`. Reported are the errors of means,
in standard deviations of the posterior, and of standard deviations, over all latents: of the
factorised approximation, and of the corrected draws; k-hat, the verdict, and the time. A posterior
deserves "use it" if means are within 0.1 standard deviations and deviations within ten percent,
each widened by twice the error of the truth itself. With --nuts the gradient evaluations to 1,000
effective draws are counted: of `infer` and NUTS handed over together, and of NumPyro's NUTS with
its own warm-up of 1,000 steps, which is kept beside the truth. Seconds are those of the processor,
compiling included. One JSON object is printed; with --out it is written there too, with a chart and
a table, and models that it has already are not run again.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from large import CASES as LARGE
from vpng.numpyro import infer
from vpng.plot.look import look
from vpng.plot.methods import Method
from vpng.plot.palette import STYLES
from vpng.posterior import Budget, Posterior, programs
from vpng.storage.files import write_atomically
from zoo import CASES
from zoo.case import Case
from zoo.hand_over import handed_over, own_warmup
from zoo.textbook import TEXTBOOK
from zoo.truth import keep, known, long_run

NEAR = 0.1


def errors(values: dict[str, np.ndarray], shares: np.ndarray, truth: dict[str, Any]) -> dict:
    """The worst error of a mean, and the smallest and the largest share of a deviation."""
    shifts, ratios = [], []
    for name, mean in truth["mean"].items():
        if name not in values:
            continue
        flat = values[name].reshape(len(shares), -1).astype(np.float64)
        sd = np.asarray(truth["sd"][name])
        found = shares @ flat
        shifts.append(np.abs(found - mean) / sd)
        ratios.append(np.sqrt(shares @ (flat - found) ** 2) / sd)
    ratios = np.concatenate(ratios)
    return {
        "mean": float(np.max(np.concatenate(shifts))),
        "sd": [float(ratios.min()), float(ratios.max())],
    }


def deserves(found: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether errors are within the bounds, given those of the truth."""
    ess = truth["ess"]
    near = NEAR + 2 / math.sqrt(ess)
    wide = NEAR + 2 / math.sqrt(2 * ess)
    return found["mean"] <= near and all(abs(ratio - 1) <= wide for ratio in found["sd"])


def guide_values(posterior: Posterior, num_draws: int = 8192) -> dict[str, np.ndarray]:
    """Draws of the factorised approximation, in constrained space."""
    noise = np.random.default_rng(0).standard_normal((num_draws, posterior.density.size))
    z = posterior.guide.loc + posterior.guide.scale * noise
    z = jnp.asarray(z, posterior.found.draws.z.dtype)
    values = programs.run(programs.constrained, posterior.density, z, batch=num_draws)
    return {name: np.asarray(value) for name, value in values.items()}


def entry(
    name: str, case: Case, truth: dict[str, Any], budget: Budget, *, nuts: bool
) -> dict[str, Any]:
    """The report of one model."""
    began = time.process_time()
    posterior = infer(case.run, *case.args, budget=budget)
    seconds = time.process_time() - began
    corrected = errors(posterior.values, posterior.found.draws.shares, truth)
    values = guide_values(posterior)
    even = np.full(8192, 1 / 8192)
    report: dict[str, Any] = {
        "model": name,
        "latents": posterior.density.size,
        "factorised": errors(values, even, truth),
        "corrected": corrected,
        "k_hat": posterior.k_hat,
        "by": "weights" if posterior.found.settled is None else "chains",
        "modes": len(posterior.found.modes),
        "verdict": type(posterior.verdict).__name__,
        "reasons": posterior.verdict.reasons,
        "trusted": posterior.verdict.trusted,
        "deserves": deserves(corrected, truth),
        "seconds": seconds,
        "truth": {key: truth[key] for key in ("ess", "r_hat", "divergences")},
    }
    if nuts and "own_warmup" in truth:
        report["nuts"] = compared(posterior, truth)
    return report


def compared(posterior: Posterior, truth: dict[str, Any]) -> dict[str, Any]:
    """NUTS handed over beside NUTS with its own warm-up."""
    began = time.process_time()
    ours = handed_over(posterior)
    means = ours.pop("means")
    shifts = {
        site: np.abs(means[site] - mean) / np.asarray(truth["sd"][site])
        for site, mean in truth["mean"].items()
        if site in means
    }
    worst = max(float(np.max(shift)) for shift in shifts.values())
    ours |= {
        "infer": round(posterior.found.cost.in_gradients),
        "worst_mean": worst,
        # As many standard errors as so many means are off by chance, of both runs.
        "chance": chance(sum(map(len, shifts.values())), ours["ess"], truth["ess"]),
        "seconds": time.process_time() - began,
    }
    own = truth["own_warmup"]
    both = ours["gradients"] + ours["infer"]
    return {"handed_over": ours, "own_warmup": own, "ratio": both / own["gradients"]}


def chance(count: int, *effective: float) -> float:
    """By how many deviations the worst of so many means may be off where nothing is wrong."""
    error = math.sqrt(sum(1 / each for each in effective))
    return (math.sqrt(2 * math.log(2 * count)) + 1.5) * error


def summary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    trusted = [e for e in entries if e["trusted"]]
    deserving = [e for e in entries if e["deserves"]]
    ratios = [e["nuts"]["ratio"] for e in entries if "nuts" in e]
    report = {
        "models": len(entries),
        "trusted": len(trusted),
        "wrongly_trusted": [e["model"] for e in trusted if not e["deserves"]],
        "deserving": len(deserving),
        "deserving_and_trusted": sum(e["trusted"] for e in deserving),
    }
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        report["geometric_mean_of_gradients"] = mean
        report["handed_over"] = len(ratios)
        report["biased"] = [
            e["model"]
            for e in entries
            if "nuts" in e
            and e["nuts"]["handed_over"]["worst_mean"] > e["nuts"]["handed_over"]["chance"]
        ]
    return report


def table(entries: list[dict[str, Any]]) -> str:
    """Markdown, a row for every model."""
    lines = [
        "| model | latents | mean, sd factorised | mean, sd corrected | k-hat | by | verdict "
        "| CPU s | gradients: infer + NUTS / own warm-up |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    both = lambda e: f"{e['mean']:.2f}, {e['sd'][0]:.2f} .. {e['sd'][1]:.2f}"
    for e in entries:
        nuts = e.get("nuts")
        ratio = (
            f"({nuts['handed_over']['infer']:,} + {nuts['handed_over']['gradients']:,}) "
            f"/ {nuts['own_warmup']['gradients']:,} = {nuts['ratio']:.2f}"
            if nuts
            else ""
        )
        lines.append(
            f"| {e['model']} | {e['latents']} | {both(e['factorised'])} | {both(e['corrected'])} "
            f"| {e['k_hat']:.2f} | {e['by']} | {e['verdict']} | {e['seconds']:.1f} | {ratio} |"
        )
    return "\n".join(lines)


def draw(entries: list[dict[str, Any]], path: Path) -> None:
    """The smallest and the largest share of a standard deviation, before and after."""
    from matplotlib.figure import Figure

    before, after = STYLES[Method.GRADIENT.value], STYLES[Method.VPNG.value]
    with look():
        figure = Figure(figsize=(9.0, 1.6 + 0.36 * len(entries)))
        axes = figure.subplots()
        axes.axvspan(1 - NEAR, 1 + NEAR, color="0.92")
        for kind, style, lift in (("factorised", before, 0.15), ("corrected", after, -0.15)):
            rows = np.arange(len(entries)) + lift
            low, high = np.array([e[kind]["sd"] for e in entries]).T
            axes.hlines(rows, low, high, color=style.colour, linewidth=2.2)
            for ends in (low, high):
                axes.plot(ends, rows, style.marker, color=style.colour, markersize=5)
            axes.plot([], [], style.marker, color=style.colour, label=kind, linestyle="-")
        words = [f"{e['model']} ({e['latents']}): {e['verdict']}" for e in entries]
        axes.set_yticks(range(len(entries)), words, fontsize=8)
        axes.set(
            xscale="log",
            xlabel="standard deviation over that of a long NUTS run, smallest to largest latent",
        )
        axes.legend(loc="upper left", fontsize=8)
        figure.savefig(path, format="png")


def write(report: dict[str, Any], directory: Path) -> None:
    """The report so far, its chart and its table."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1) + "\n"
    write_atomically(directory / "posteriors.json", lambda target: target.write_text(text))
    write_atomically(
        directory / "posteriors.md",
        lambda target: target.write_text(table(report["cases"]) + "\n"),
    )
    write_atomically(directory / "posteriors.png", lambda target: draw(report["cases"], target))


def every_case() -> dict[str, Case]:
    """The first case of every model, by name."""
    cases: dict[str, Case] = {}
    for case in (*TEXTBOOK, *CASES):
        if case.guide != "amortised":
            cases.setdefault(case.model, case)
    for case in LARGE:
        cases.setdefault(f"large: {case.model}", case)
    return cases


def chosen(parts: list[str] | None) -> dict[str, Case]:
    """Those whose name contains one of `parts`, or all."""
    wanted = [part.lower() for part in parts or [""]]
    return {
        name: case
        for name, case in every_case().items()
        if any(part in name.lower() for part in wanted)
    }


def complete(name: str, case: Case, *, nuts: bool) -> None:
    """Run NUTS for what is not known of a model."""
    if name not in known():
        keep(name, long_run(case))
    if nuts and "own_warmup" not in known()[name]:
        own = own_warmup(case)
        own.pop("means")
        keep(name, known()[name] | {"own_warmup": own})


def kept_entries(directory: Path | None) -> dict[str, dict[str, Any]]:
    """What an earlier run has written."""
    path = None if directory is None else directory / "posteriors.json"
    if path is None or not path.exists():
        return {}
    return {each["model"]: each for each in json.loads(path.read_text())["cases"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", help="parts of names of models")
    parser.add_argument("--truth", action="store_true", help="run NUTS where no truth is known")
    parser.add_argument("--nuts", action="store_true", help="count gradient evaluations of NUTS")
    parser.add_argument("--seconds", type=float, default=60.0, help="the budget of a posterior")
    parser.add_argument("--out", type=Path, help="directory for the report")
    options = parser.parse_args()
    kept = kept_entries(options.out)
    entries: list[dict[str, Any]] = []
    for name, case in chosen(options.models).items():
        if options.truth:
            complete(name, case, nuts=options.nuts)
        if name not in known():
            continue
        if name not in kept:
            budget = Budget(seconds=options.seconds)
            kept[name] = entry(name, case, known()[name], budget, nuts=options.nuts)
            jax.clear_caches()
        entries.append(kept[name])
        found = kept[name]
        print(name, found["verdict"], found["corrected"], file=sys.stderr, flush=True)
        if options.out:
            write({"summary": summary(entries), "cases": entries}, options.out)
    report = {"summary": summary(entries), "cases": entries}
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
