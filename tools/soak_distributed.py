"""Everything that is promised of several devices and processes, at length.

The same answer from 1, 2, 4 and 8 devices in float64 and float32 and from 2 and 4 processes, for
every curvature; checkpoints written by 4 processes, resumed by 1, then 2, then 4; a worker that is
killed and one that is frozen; settings that differ; `vpng reproduce` stopped by a signal to one of
two processes. A JSON object is printed for each part; the exit code is 1 if one is not well.

    python tools/soak_distributed.py [PART...]
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "distributed"))

from launch import finished, free_port, launch, launch_processes, member, result, wait_for_step

FLOAT64, FLOAT32 = 1e-10, 1e-4
"""Largest differences of a parameter after 50 steps, which move them by about one."""
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


def reproduced() -> dict:
    """`vpng reproduce` by two processes, one of which gets a SIGTERM, and then by one."""
    with tempfile.TemporaryDirectory() as folder:
        given = ("vae", "--data", "digits", "--iterations", "400", "--seeds", "1")
        given += ("--methods", "vpng", "--out", folder)
        for setting in ("learning_rates=[0.01]", "rules=['adam']", "pilot=1.0", "record_every=20"):
            given += ("--set", setting)
        command = [sys.executable, "-m", "vpng", "reproduce", *given]
        clean = {**os.environ, "JAX_PLATFORMS": "cpu"}
        start = lambda *more: subprocess.Popen([*command, *more], env=clean, stderr=-1, text=True)
        where = f"127.0.0.1:{free_port()}"
        both = [start(*member(where, 2, process)) for process in range(2)]
        began = time.monotonic()
        while not list(Path(folder).glob("runs/*/step-*.vpng")):
            assert time.monotonic() - began < 600.0
            time.sleep(0.1)
        both[1].send_signal(signal.SIGTERM)
        began = time.monotonic()
        said = [process.communicate(timeout=120.0)[1] for process in both]
        seconds = time.monotonic() - began
        steps = [int(path.stem[5:]) for path in Path(folder).glob("runs/*/step-*.vpng")]
        one = start("--mesh", "--resume")
        one.communicate(timeout=1200.0)
        return {
            "exit codes": [process.returncode for process in both],
            "each said how to go on": all("go on with --resume" in text for text in said),
            "seconds until both stopped": round(seconds, 1),
            "stopped within a run": max(steps, default=0) > 0,
            "one process went on to the end": one.returncode == 0,
        }


def _far(first: list[float], second: list[float]) -> float:
    return float(np.max(np.abs(np.array(first) - np.array(second))))


def main() -> int:
    """Run all of it, or the parts that are named; 1 if one is not well, else 0."""
    alone = lambda: result(launch(*ALL))["params"]
    parts: dict[str, Callable[[], Any]] = {
        "2 processes": lambda: processes(2, alone()),
        "4 processes": lambda: processes(4, alone()),
        "4 processes, then 1, 2 and 4": lambda: moved(alone()),
        "worker killed": lambda: lost(signal.SIGKILL, 3, "20"),
        "coordinator killed": lambda: lost(signal.SIGKILL, 0, "20"),
        "worker frozen": lambda: lost(signal.SIGSTOP, 3, "20"),
        "other settings refused": refused,
        "vpng reproduce, stopped": reproduced,
        "devices, float64": devices,
        "devices, float32": lambda: devices("--float32"),
    }
    bad = 0
    for name in sys.argv[1:] or parts:
        say(name)
        found = parts[name]()
        fine = well(found, FLOAT32 if "float32" in name else FLOAT64)
        bad += not fine
        print(json.dumps({name: found, "well": fine}), flush=True)
    return 1 if bad else 0


def well(found: Any, tolerance: float) -> bool:
    """Whether every promise holds, every difference is small and every ending in time."""
    if isinstance(found, bool):
        return found
    small = {"largest difference": tolerance, "seconds": 60.0}
    return all(
        np.max(list(value.values()) if isinstance(value, dict) else value) < limit
        for key, value in found.items()
        for start, limit in small.items()
        if key.startswith(start)
    ) and all(value for value in found.values() if isinstance(value, bool))


if __name__ == "__main__":
    sys.exit(main())
