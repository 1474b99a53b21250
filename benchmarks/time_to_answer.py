"""How long does a user wait? Every contender from the call to the answer, in a process of its own.

The clock starts at `SVI(model, guide)`, or what stands in its place, with all imports done and the
data on the device, and stops when the answer is there: drawing a start, tracing, lowering and
compiling are in it. Models of `zoo` with a guide of full covariance, and textbook models on which
nothing was tuned. ELBOs are evaluated off the clock, with the same draws for all; the best of a
model is what anybody reached. Contenders take turns, so that a noisy machine is noisy for all, and
seconds of the processor are reported too. Results are kept in a JSON file case by case: a run that
was cut short goes on where it was, and `--models`, `--contenders` and `--cores` choose parts.
`--before PATH` measures the vpng of another checkout's `src` as "vpng_before"; "vpng_next" is a
process that finds the programs of another one in JAX's persistent cache. `--show` prints the table
and draws the chart of what there is; with `--processor` in seconds of the processor, which on one
core and a quiet machine are those on the wall, and on a busy one are what the wall would say alone.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NAME = "time_to_answer.json"
BEFORE = "vpng_before"
NEXT = "vpng_next"
WALL, PROCESSOR = "seconds", "cpu_seconds"
SMALL = 50
"""Most latents of a model for which waiting is all that matters."""


def work(contender: str, case: str, seed: int, target: float | None) -> dict[str, Any]:
    """One contender on one case, in this process."""
    import jax

    from answer.contenders import CONTENDERS
    from answer.models import MODELS

    chosen = MODELS[case]
    jax.block_until_ready(jax.random.key(seed))
    key = jax.random.key(seed)
    return CONTENDERS[contender](chosen, key, target)


def in_a_process(
    contender: str,
    case: str,
    seed: int,
    cores: int,
    target: float | None,
    before: Path | None,
    cache: str | None = None,
) -> dict[str, Any]:
    """One contender on one case, on so many cores; why it failed, if it did."""
    if contender == NEXT:
        with tempfile.TemporaryDirectory() as folder:
            asked = ("vpng", case, seed, cores, None, None, folder)
            return [in_a_process(*asked) for _ in range(2)][1]
    own = contender != BEFORE
    command = [sys.executable, __file__, "--worker", contender if own else "vpng", case, str(seed)]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "XLA_FLAGS"))
    }
    if cache is not None:
        environment["JAX_COMPILATION_CACHE_DIR"] = cache
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    if not own:
        environment["PYTHONPATH"] = str(before)
    if target is not None:
        command += ["--target", str(target)]
    pinned = lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, preexec_fn=pinned, check=False
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])


def best_elbo(found: dict[str, dict[str, Any]]) -> float | None:
    """The highest that any contender reached on a case."""
    reached = [entry.get("elbo") for entry in found.values()]
    return max((elbo for elbo in reached if elbo is not None), default=None)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def ratios(cases: dict[str, Any], other: str, size: dict[str, int], clock: str) -> dict[str, float]:
    """Seconds of vpng over those of another contender, by case, where both are known."""
    both = {
        name: found["vpng"][clock] / found[other][clock]
        for name, found in cases.items()
        if clock in found.get("vpng", {}) and clock in found.get(other, {})
    }
    return {name: ratio for name, ratio in both.items() if size[name] <= SMALL}


def summary(report: dict[str, Any], clock: str) -> dict[str, Any]:
    """For every number of cores and every other contender: the ratios' mean and the worst case."""
    out: dict[str, Any] = {}
    for cores, cases in report["cores"].items():
        others = {name for found in cases.values() for name in found} - {"vpng"}
        for other in sorted(others):
            known = ratios(cases, other, report["latents"], clock)
            if known:
                worst = max(known, key=lambda name: known[name])
                mean = geometric_mean(list(known.values()))
                entry = {"geometric_mean": mean, "worst": known[worst], "worst_case": worst}
                out.setdefault(cores, {})[other] = {**entry, "models": len(known)}
    return out


def table(report: dict[str, Any], cores: str, clock: str) -> str:
    """In Markdown: seconds of all, nats below the best, and the shares of those of vpng."""
    cases = report["cores"].get(cores, {})
    names = list(dict.fromkeys(name for found in cases.values() for name in found))
    stages = ("init", "tracing", "lowering", "compiling")
    lines = [
        "| model | latents | "
        + " | ".join(names)
        + " | vpng, % of it: "
        + ", ".join(stages)
        + " |",
        "| --- " * (len(names) + 3) + "|",
    ]
    for case, found in cases.items():
        best = best_elbo(found)
        row = [case, str(report["latents"][case])]
        row += [_cell(found.get(name), best, clock) for name in names]
        own = found.get("vpng", {})
        row.append(", ".join(_share(own.get(stage), own.get(WALL)) for stage in stages))
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _cell(entry: dict[str, Any] | None, best: float | None, clock: str = WALL) -> str:
    if entry is None:
        return ""
    if clock not in entry:
        return "failed"
    away = entry.get("elbo")
    short = "" if away is None or best is None else f" ({best - away:.1f})"
    late = "" if entry.get("arrived", True) else " never"
    return f"{entry[clock]:.2f}{short}{late}"


def _share(value: float | None, whole: float | None) -> str:
    return "" if value is None or whole is None else f"{100 * value / whole:.0f}"


def keep(report: dict[str, Any], path: Path) -> None:
    from vpng.storage.files import write_atomically

    text = json.dumps(report, indent=1) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(text))


def show(report: dict[str, Any], path: Path, clock: str) -> None:
    from answer.chart import draw

    for cores in report["cores"]:
        print(f"{cores} core(s): seconds (nats below the best ELBO)\n")
        print(table(report, cores, clock), end="\n\n")
        draw(report, cores, path.with_name(f"time_to_answer_{cores}.png"), clock)
    print(json.dumps(summary(report, clock), indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs=3, metavar=("CONTENDER", "CASE", "SEED"))
    parser.add_argument("--target", type=float)
    parser.add_argument("--models", nargs="*", default=[""], help="parts of names")
    parser.add_argument("--contenders", nargs="*", help="all, unless given")
    parser.add_argument("--cores", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--before", type=Path, help="the src of another checkout")
    parser.add_argument("--again", action="store_true", help="measure what is known already too")
    parser.add_argument("--out", type=Path, default=Path("out/time_to_answer"))
    parser.add_argument("--show", action="store_true", help="no runs")
    parser.add_argument(
        "--processor", action="store_true", help="show seconds of the processor, of all cores"
    )
    options = parser.parse_args()
    if options.worker:
        contender, case, seed = options.worker
        print(json.dumps(work(contender, case, int(seed), options.target)))
        return
    path = options.out / NAME
    report = {"latents": {}, "cores": {}}
    if path.exists():
        report = json.loads(path.read_text())
    if not options.show:
        run(report, path, options)
    show(report, path, PROCESSOR if options.processor else WALL)


def run(report: dict[str, Any], path: Path, options: argparse.Namespace) -> None:
    """Every part that was asked for and is not known."""
    from answer.contenders import CONTENDERS
    from answer.models import MODELS
    from zoo.case import num_latents

    before = [BEFORE] if options.before else []
    contenders = options.contenders or [*before, *CONTENDERS, NEXT]
    chosen = [case for case in MODELS if any(part in case for part in options.models)]
    for cores in options.cores:
        for case in chosen:
            report["latents"].setdefault(case, num_latents(MODELS[case]))
            found = report["cores"].setdefault(str(cores), {}).setdefault(case, {})
            for contender in contenders:
                if contender in found and not options.again:
                    continue
                target = best_elbo(found) if contender == "best_adam" else None
                asked = (contender, case, options.seed, cores, target, options.before)
                found[contender] = in_a_process(*asked)
                keep(report, path)
                said = _cell(found[contender], best_elbo(found))
                print(f"{cores} core(s), {case}, {contender}: {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
