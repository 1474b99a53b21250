"""Everything that is promised of several devices and processes, at length.

The same answer from 1, 2, 4 and 8 devices in float64 and float32 and from 2 and 4 processes, for
every curvature; checkpoints written by 4 processes, resumed by 1, then 2, then 4; a worker that is
killed and one that is frozen; settings that differ. One JSON object is printed.

    python tools/soak_distributed.py
"""

import json
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "distributed"))

from launch import finished, launch, launch_processes, result, wait_for_step

METHODS = "dense,dual,cg,block,tridiagonal"


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def devices(*precision: str) -> dict:
    """The largest difference of any number of devices from one, by method."""
    found = result(launch("--devices", "8", "--plan", "full", "--methods", METHODS, *precision))
    worst: dict[str, float] = {}
    for name, case in found.items():
        method = name.split()[0]
        worst[method] = max(worst.get(method, 0.0), case["differs"])
    return {"cases": len(found), "largest difference": worst}


def processes(count: int, alone: dict) -> dict:
    """The largest difference of `count` processes from one, and who read what."""
    found = [result(worker) for worker in launch_processes(count, "--methods", METHODS)]
    read = [row for answer in found for row in answer["read"]]
    return {
        "largest difference": {
            method: _far(found[0]["params"][method], alone[method]) for method in alone
        },
        "every row read by one process alone": sorted(read) == list(range(67)),
    }


def moved(alone: dict) -> dict:
    """A run that is begun by 4 processes and goes on with 1, 2 and 4 of them."""
    with tempfile.TemporaryDirectory() as folder:
        kept = ("--methods", "tridiagonal", "--checkpoints", folder, "--steps")
        for count, steps in ((4, "20"), (1, "30"), (2, "40"), (4, "50")):
            found = [result(worker) for worker in launch_processes(count, *kept, steps)]
            say(f"  {steps} steps with {count}")
    return {"largest difference": _far(found[0]["params"]["tridiagonal"], alone["tridiagonal"])}


def lost(how: signal.Signals, victim: int, heartbeat: str) -> dict:
    """Seconds until the others stop, what they say, and whether fewer can go on."""
    with tempfile.TemporaryDirectory() as folder:
        kept = ("--methods", "block", "--checkpoints", folder, "--heartbeat", heartbeat)
        workers = launch_processes(3, *kept, "--slow", "0.2", "--steps", "10000")
        wait_for_step(workers[victim], 30)
        began = time.monotonic()
        workers[victim].send_signal(how)
        others = [worker for i, worker in enumerate(workers) if i != victim]
        said = []
        for worker in others:
            code, _, err = finished(worker, 120.0)
            said.append(code != 0 and ("is gone" in err or "Terminating process" in err))
        seconds = time.monotonic() - began
        workers[victim].kill()
        done = max(int(path.stem[5:]) for path in Path(folder).glob("step-*.vpng"))
        (fewer,) = [result(w) for w in [launch(*kept, "--steps", str(done + 10))]]
    return {
        "seconds until all others stopped": round(seconds, 1),
        "each said why": all(said),
        "fewer went on": bool(fewer["params"]["block"]),
    }


def refused() -> bool:
    """Whether a process with other settings stops all at the start."""
    workers = launch_processes(2, own={1: ("--setting", "another")})
    ends = [finished(worker) for worker in workers]
    return all(code != 0 and "process 1: expected" in err for code, _, err in ends)


def _far(first: list[float], second: list[float]) -> float:
    return float(np.max(np.abs(np.array(first) - np.array(second))))


def main() -> None:
    """Run all of it."""
    report: dict = {}
    say("one process")
    alone = result(launch("--methods", METHODS))["params"]
    for count in (2, 4):
        say(f"{count} processes")
        report[f"{count} processes"] = processes(count, alone)
    say("checkpoints that move")
    report["4 processes, then 1, 2 and 4"] = moved(alone)
    say("a worker is killed")
    report["worker killed"] = lost(signal.SIGKILL, 2, "20")
    say("the coordinator is killed")
    report["coordinator killed"] = lost(signal.SIGKILL, 0, "20")
    say("a worker is frozen")
    report["worker frozen"] = lost(signal.SIGSTOP, 2, "20")
    say("other settings")
    report["other settings refused"] = refused()
    say("devices in float64")
    report["devices, float64"] = devices()
    say("devices in float32")
    report["devices, float32"] = devices("--float32")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
