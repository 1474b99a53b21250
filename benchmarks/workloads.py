"""From tens of latents to tens of thousands: the ELBO against seconds from the call on.

Every pair of a model and a guide in `large` is fitted by `SVI(model, guide).run(key, "auto", ...)`
of vpng, with nothing set, and by NumPyro's SVI with Adam, one particle and ten, at five rates. Each
contender has a process of its own and so many seconds, which begin at the call: drawing a start,
tracing and compiling are in them, imports and the data are not. After a third of the time only the
two best rates of Adam go on; which rate was the best is decided afterwards, for each question
anew, and trying the others is not on its clock. A run has arrived when its ELBO is within a nat, or
a thousandth, of the best that anybody reached. ELBOs are evaluated off the clock, in double
precision and with the same draws for all. Results are kept in a JSON file case by case, and a run
that was cut short goes on where it was. `--show` prints the table and draws the chart of what there
is.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NAME = "workloads.json"
CONTENDERS = ("vpng", "adam, 1 particle", "adam, 10 particles")


def work(contender: str, case: str, seed: int, limit: float) -> dict[str, Any]:
    """One contender on one case, in this process."""
    import jax

    from large import CASES, runs

    [chosen] = [each for each in CASES if each.name == case]
    key = jax.block_until_ready(jax.random.key(seed))
    if contender == "vpng":
        return runs.vpng(chosen, key, limit)
    return runs.adam(chosen, key, limit, int(contender.split()[1]))


def in_a_process(contender: str, case: str, options: argparse.Namespace) -> dict[str, Any]:
    """One contender on one case, on one core; why it failed, if it did."""
    command = [sys.executable, __file__, "--worker", contender, case]
    command += ["--seed", str(options.seed), "--seconds", str(options.seconds)]
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JAX_COMPILATION_CACHE", "JAX_PERSISTENT_CACHE", "XLA_FLAGS"))
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-3:]}
    return json.loads(done.stdout.splitlines()[-1])


def keep(report: dict[str, Any], path: Path) -> None:
    from vpng.storage.files import write_atomically

    text = json.dumps(report) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda temporary: temporary.write_text(text))


def run(report: dict[str, Any], path: Path, options: argparse.Namespace) -> None:
    """Every part that was asked for and is not known."""
    from large import choose
    from large.verdict import summary_line
    from zoo.case import num_latents

    for case in choose(options.models):
        found = report["cases"].setdefault(case.name, {"latents": num_latents(case)})
        for contender in options.contenders:
            if contender in found and not options.again:
                continue
            found[contender] = in_a_process(contender, case.name, options)
            keep(report, path)
            print(f"{case.name}, {contender}: {summary_line(found, contender)}", file=sys.stderr)


def show(report: dict[str, Any], path: Path) -> None:
    from large.chart import draw
    from large.verdict import summary, table

    print(table(report["cases"]))
    print(json.dumps(summary(report["cases"]), indent=1))
    draw(report["cases"], path.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs=2, metavar=("CONTENDER", "CASE"))
    parser.add_argument("--models", nargs="*", help="parts of names")
    parser.add_argument("--contenders", nargs="*", default=CONTENDERS)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true", help="measure what is known already too")
    parser.add_argument("--out", type=Path, default=Path("out/workloads"))
    parser.add_argument("--show", action="store_true", help="no runs")
    options = parser.parse_args()
    if options.worker:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
        print(json.dumps(work(*options.worker, options.seed, options.seconds)))
        return
    path = options.out / NAME
    report = {"settings": {"seconds": options.seconds, "seed": options.seed}, "cases": {}}
    if path.exists():
        report = json.loads(path.read_text())
    if not options.show:
        run(report, path, options)
    show(report, path)


if __name__ == "__main__":
    main()
