"""Everything that is promised of several devices and processes, at length.

The same answer from 1, 2, 4 and 8 devices in float64 and float32 and from 2 and 4 processes, for
every curvature; checkpoints written by 4 processes, resumed by 1, then 2, then 4; a worker that is
killed and one that is frozen; settings that differ. A JSON object is printed for each part.

    python tools/soak_distributed.py [PART...]
"""

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "distributed"))

from launch import finished, launch, launch_processes, result, wait_for_step

ALL = ("--hidden", "8", "--methods", "dense,dual,cg,block,tridiagonal")


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def devices(*precision: str) -> dict:
    """The largest difference of any number of devices from one, by method."""
    found = result(launch("--devices", "8", "--plan", "full", *ALL, *precision))
    worst: dict[str, float] = {}
    for name, case in found.items():
        method = name.split()[0]
        worst[method] = max(worst.get(method, 0.0), case["differs"])
    return {"cases": len(found), "largest difference": worst}


def processes(count: int, alone: dict) -> dict:
    """The largest difference of `count` processes from one, and who read what."""
    found = [result(worker) for worker in launch_processes(count, *ALL)]
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
        kept = ("--hidden", "8", "--methods", "tridiagonal", "--checkpoints", folder, "--steps")
        for count, steps in ((4, "20"), (1, "30"), (2, "40"), (4, "50")):
            found = [result(worker) for worker in launch_processes(count, *kept, steps)]
            say(f"  {steps} steps with {count}")
    return {"largest difference": _far(found[0]["params"]["tridiagonal"], alone["tridiagonal"])}


def lost(how: signal.Signals, victim: int, heartbeat: str) -> dict:
    """Seconds until the others stop, what they say, and whether fewer can go on."""
    with tempfile.TemporaryDirectory() as folder:
        kept = ("--methods", "block", "--checkpoints", folder, "--heartbeat", heartbeat)
        workers = launch_processes(4, *kept, "--slow", "0.2", "--steps", "10000")
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
    """Run all of it, or the parts that are named."""
    alone = lambda: result(launch(*ALL))["params"]
    parts: dict[str, Callable[[], Any]] = {
        "2 processes": lambda: processes(2, alone()),
        "4 processes": lambda: processes(4, alone()),
        "4 processes, then 1, 2 and 4": lambda: moved(alone()),
        "worker killed": lambda: lost(signal.SIGKILL, 3, "20"),
        "coordinator killed": lambda: lost(signal.SIGKILL, 0, "20"),
        "worker frozen": lambda: lost(signal.SIGSTOP, 3, "20"),
        "other settings refused": refused,
        "devices, float64": devices,
        "devices, float32": lambda: devices("--float32"),
    }
    for name in sys.argv[1:] or parts:
        say(name)
        print(json.dumps({name: parts[name]()}), flush=True)


if __name__ == "__main__":
    main()
