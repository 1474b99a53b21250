"""How the cost of a step grows with devices, batch, width and particles.

1. Bytes that a device sends in a step of the autoencoder and of the matrix factorisation, counted
   from the compiled programs for 2, 4 and 8 devices, beside those of an all-reduce of the gradient
   and one of the factors for every refresh.
2. Two single-threaded processes, each on a core of its own, and two devices of one process,
   against one: the same batch divided (strong) and the same batch for each (weak).
3. A model of the cost at 8, 64 and 512 devices from the times of one device, the bytes, and the
   times of all-reduces between two; checked against what was measured for two.
4. On one device: step time and memory against the layers' width, the batch and the particles.

    python benchmarks/scaling.py --out scaling
    python benchmarks/scaling.py --out scaling --quick
    python benchmarks/scaling.py --out scaling --parts sweep

Parts are added to what the folder has already; the second and third want two quiet cores. It fails
if a step sends more than it may.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scale.chart import draw
from scale.model import Link, Step

WORKER = Path(__file__).parent / "scale" / "worker.py"
METHODS = ("gradient", "vpng_block", "vpng")
BATCH = {"vae": 600, "vmf": 3000}
INVERSE_PERIOD = {"vae": 5, "vmf": 20}
FACTORS = {"vae": 11, "vmf": 8}
"""Factors that are inverted, one device each."""
MODELLED = (2, 8, 64, 512)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def workers(count: int, task: str, arguments: tuple[str, ...], devices: int = 1) -> Any:
    """The answer of `count` workers of as many devices, a core for each device."""
    cores = sorted(os.sched_getaffinity(0))
    members: list[tuple[str, ...]] = [("--devices", str(devices))]
    if count > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            where = f"127.0.0.1:{probe.getsockname()[1]}"
        members = [
            ("--coordinator", where, "--num-processes", str(count), "--process-id", str(process))
            for process in range(count)
        ]
    own = lambda process: {cores[i % len(cores)] for i in range(process, process + devices)}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKER), task, *arguments, *member],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda chosen=own(process): os.sched_setaffinity(0, chosen),
        )
        for process, member in enumerate(members)
    ]
    outputs = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{task}: a worker failed")
    return json.loads(outputs[0].split("RESULT ")[1])


def communication(counts: tuple[int, ...]) -> dict:
    """Bytes by case, devices and method."""
    methods = ",".join(METHODS)
    found: dict = {}
    for case, batch in BATCH.items():
        for count in counts:
            say(f"bytes of {case} on {count} devices")
            given = ("--case", case, "--batches", str(batch // 24 * 8), "--methods", methods)
            answer = workers(1, "bytes", given, devices=count)
            found.setdefault(case, {})[str(count)] = answer
    return found


PAIRS = {"processes": {"count": 2}, "devices": {"count": 1, "devices": 2}}
"""Two of something, as arguments of `workers`."""


def scaling(case: str, batch: int, sent: dict, steps: int, rounds: int) -> dict:
    """Times of one and of two, the model made from the first, and its word on the second.

    The times of one process at three batch sizes tell what is done for each datum from what is
    not; of the latter the inverses are what steps cost less when they are made only once.
    """
    given = ("--case", case, "--methods", ",".join(METHODS))
    given += ("--steps", str(steps), "--rounds", str(rounds))
    sizes = (batch // 4, batch // 2, batch)
    say(f"{case}: one process")
    one = workers(1, "time", (*given, "--batches", ",".join(map(str, sizes))))
    once = workers(1, "time", (*given, "--batches", str(batch), "--invert-once"))
    two, links = {}, {}
    for pair, which in PAIRS.items():
        say(f"{case}: two {pair}")
        both = (*given, "--batches", f"{batch},{2 * batch}")
        two[pair] = workers(task="time", arguments=both, **which)
        messages = ("--sizes", "40000,400000,4000000", "--steps", "50")
        links[pair] = Link.fitted(workers(task="collectives", arguments=messages, **which))
    found: dict = {
        "links": {pair: link._asdict() for pair, link in links.items()},
        "methods": {},
    }
    for method in METHODS:
        inversions = -(-steps // INVERSE_PERIOD[case])
        saved = max(one[method][str(batch)] - once[method][str(batch)], 0.0)
        step = Step.fitted(one[method], saved * inversions / max(inversions - 1, 1))
        bytes_of = {int(count): answer[method] for count, answer in sent.items()}

        def modelled(count: int, link: Link, step: Step = step, bytes_of: dict = bytes_of) -> dict:
            # Each device sends 2 (n - 1) / n times what it reduces.
            nearest = count if count in bytes_of else max(bytes_of)
            known = bytes_of[nearest]
            volume = known["a step"] * (1 - 1 / count) / (1 - 1 / nearest)
            rest = (volume, known["messages"], link, FACTORS[case])
            return {
                "strong": step.seconds(batch, count, *rest),
                "weak": step.seconds(batch * count, count, *rest),
            }

        found["methods"][method] = {
            "step": step._asdict(),
            "one": one[method],
            "two": {
                pair: _compared(one[method], two[pair][method], batch, modelled(2, links[pair]))
                for pair in PAIRS
            },
            "modelled": {str(count): modelled(count, links["processes"]) for count in MODELLED},
        }
    return found


def _compared(one: dict, two: dict, batch: int, modelled: dict) -> dict:
    """Two against one: the same batch divided, and the same batch for each."""
    alone, half = one[str(batch)], one[str(batch // 2)]
    strong, weak = two[str(batch)], two[str(2 * batch)]
    return {
        "seconds": {"strong": strong, "weak": weak},
        "speed-up": {"strong": alone / strong, "weak": 2 * alone / weak},
        # What two take longer than one does with as many data as each of them has.
        "share of collectives": {"strong": 1 - half / strong, "weak": 1 - alone / weak},
        "model over measurement": {
            "strong": modelled["strong"]["seconds"] / strong,
            "weak": modelled["weak"]["seconds"] / weak,
        },
    }


def sweeps(quick: bool, rounds: int) -> Iterator[tuple[str, dict]]:
    """Seconds and bytes by method and value, for everything that is varied."""
    values = {
        "width": (100, 200) if quick else (100, 200, 500, 1000, 2000),
        "batch": (60, 120) if quick else (150, 300, 600, 1200, 2400),
        "particles": (1, 2) if quick else (1, 3, 10, 30),
    }
    for name, varied in values.items():
        say(f"sweep of the {name}")
        given = ("--sweep", name, "--values", ",".join(map(str, varied)))
        yield name, workers(1, "sweep", (*given, "--rounds", str(rounds)))


def too_many(communication: dict) -> list[str]:
    """Steps that send more than the gradient and, for every refresh, the factors once."""
    return [
        f"{case}, {count} devices, {method}: {answer['ratio']:.3f} times what it may send"
        for case, counts in communication.items()
        for count, methods in counts.items()
        for method, answer in methods.items()
        if answer["ratio"] > 1.0
    ]


def _known(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("scaling"))
    parser.add_argument("--quick", action="store_true")
    parts = ("communication", "scaling", "sweep")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    steps, rounds = (20, 1) if options.quick else (20, 3)
    counts = (2, 8) if options.quick else (2, 4, 8)
    batch = {"vae": 120, "vmf": 240} if options.quick else BATCH
    path = options.out / "scaling.json"
    report = _known(path)

    def keep(part: str, found: dict) -> None:
        report.update(_known(path))
        report[part] = found
        path.write_text(json.dumps(report, indent=1) + "\n")

    if "communication" in options.parts:
        keep("communication", communication(counts))
    if "scaling" in options.parts:
        sent = report["communication"]
        keep("scaling", {c: scaling(c, n, sent[c], steps, rounds) for c, n in batch.items()})
    if "sweep" in options.parts:
        swept: dict = {}
        for name, found in sweeps(options.quick, rounds):
            swept[name] = found
            keep("sweep", swept)
    if all(part in report for part in parts):
        draw(report, options.out / "scaling.png")
    print(json.dumps(report, indent=1))
    if found := too_many(report.get("communication", {})):
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
