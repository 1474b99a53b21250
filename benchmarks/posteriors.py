"""Can the posterior be trusted? `vpng.numpyro.infer` against long runs of NUTS, model by model.

Every model of `zoo` whose truth is known (`zoo/truth.json`; --truth runs NUTS for those that are
missing) is given to `infer`. Reported are the errors of means, in standard deviations of the
posterior, and of standard deviations, over all latents: of the factorised approximation, and of the
corrected draws; k-hat, the verdict, and the time. A posterior deserves "use it" if means are
within 0.1 standard deviations and deviations within ten percent, each widened by twice the error of
the truth itself. With --nuts the gradient evaluations to 1,000 effective draws are counted: of
NUTS handed over, and of NumPyro's NUTS with its own warm-up of 1,000 steps. Seconds are those of
the processor, compiling included. One JSON object is printed; with --out it is written there too,
with a chart and a table.
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

from vpng.numpyro import infer
from vpng.plot.look import look
from vpng.plot.methods import Method
from vpng.plot.palette import STYLES
from vpng.posterior import Budget, Posterior, programs
from vpng.storage.files import write_atomically
from zoo import choose
from zoo.case import Case
from zoo.hand_over import handed_over, own_warmup
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


def entry(case: Case, truth: dict[str, Any], budget: Budget, *, nuts: bool) -> dict[str, Any]:
    """The report of one model."""
    began = time.process_time()
    posterior = infer(case.run, *case.args, budget=budget)
    seconds = time.process_time() - began
    corrected = errors(posterior.values, posterior.found.draws.shares, truth)
    values = guide_values(posterior)
    even = np.full(8192, 1 / 8192)
    report = {
        "model": case.model,
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
    if nuts:
        report["nuts"] = compared(case, posterior, truth)
    return report


def compared(case: Case, posterior: Posterior, truth: dict[str, Any]) -> dict[str, Any]:
    """NUTS handed over and with its own warm-up."""
    sides = {}
    for name, run in (
        ("handed_over", lambda: handed_over(posterior)),
        ("own_warmup", lambda: own_warmup(case)),
    ):
        began = time.process_time()
        side = run()
        means = side.pop("means")
        side["worst_mean"] = max(
            float(np.max(np.abs(means[site] - mean) / np.asarray(truth["sd"][site])))
            for site, mean in truth["mean"].items()
            if site in means
        )
        sides[name] = side | {"seconds": time.process_time() - began}
    ratio = sides["handed_over"]["gradients"] / sides["own_warmup"]["gradients"]
    return {**sides, "ratio": ratio}


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
    return report


def table(entries: list[dict[str, Any]]) -> str:
    """Markdown, a row for every model."""
    lines = [
        "| model | latents | mean, sd factorised | mean, sd corrected | k-hat | by | verdict "
        "| CPU s | gradients handed over / own |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    both = lambda e: f"{e['mean']:.2f}, {e['sd'][0]:.2f} .. {e['sd'][1]:.2f}"
    for e in entries:
        nuts = e.get("nuts")
        ratio = (
            f"{nuts['handed_over']['gradients']:,} / {nuts['own_warmup']['gradients']:,} "
            f"= {nuts['ratio']:.2f}"
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", help="parts of names of models")
    parser.add_argument("--truth", action="store_true", help="run NUTS where no truth is known")
    parser.add_argument("--nuts", action="store_true", help="count gradient evaluations of NUTS")
    parser.add_argument("--seconds", type=float, default=60.0, help="the budget of a posterior")
    parser.add_argument("--out", type=Path, help="directory for the report")
    options = parser.parse_args()
    cases = {case.model: case for case in choose(options.models) if case.guide != "amortised"}
    entries: list[dict[str, Any]] = []
    report: dict[str, Any] = {}
    for name, case in cases.items():
        if name not in known() and options.truth:
            keep(name, long_run(case))
        if name not in known():
            continue
        found = entry(case, known()[name], Budget(seconds=options.seconds), nuts=options.nuts)
        entries.append(found)
        jax.clear_caches()
        print(name, found["verdict"], found["corrected"], file=sys.stderr, flush=True)
        report = {"summary": summary(entries), "cases": entries}
        if options.out:
            write(report, options.out)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
