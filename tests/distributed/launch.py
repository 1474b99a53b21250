"""Starts `worker.py` in processes of their own."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

WORKER = Path(__file__).with_name("worker.py")


def launch(*arguments: str) -> subprocess.Popen:
    """A worker, its output and errors captured."""
    return subprocess.Popen(
        [sys.executable, str(WORKER), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def launch_processes(
    count: int, *arguments: str, own: Mapping[int, tuple[str, ...]] = MappingProxyType({})
) -> list[subprocess.Popen]:
    """`count` workers that join each other on this machine, some with arguments of their own."""
    where = f"127.0.0.1:{free_port()}"
    return [
        launch(*member(where, count, process), *arguments, *own.get(process, ()))
        for process in range(count)
    ]


def member(where: str, count: int, process: int) -> tuple[str, ...]:
    """The arguments of one of `count` processes."""
    return (
        "--coordinator",
        where,
        "--num-processes",
        str(count),
        "--process-id",
        str(process),
    )


def finished(worker: subprocess.Popen, seconds: float = 3600.0) -> tuple[int, str, str]:
    """Exit code, output and errors, in bounded time."""
    try:
        out, err = worker.communicate(timeout=seconds)
    finally:
        worker.kill()
    return worker.returncode, out, err


def result(worker: subprocess.Popen) -> dict:
    """What the worker found."""
    code, out, err = finished(worker)
    assert code == 0, err[-3000:]
    (line,) = [line for line in out.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def wait_for_step(worker: subprocess.Popen, step: int) -> str:
    """Read the worker's errors until it says that it has done so many steps."""
    assert worker.stderr is not None
    said = []
    for line in worker.stderr:
        said.append(line)
        words = line.split()
        if words[:1] == ["step"] and int(words[1]) >= step:
            return "".join(said)
    raise AssertionError("the worker ended before that step:\n" + "".join(said[-20:]))


def seconds_until_end(worker: subprocess.Popen, limit: float) -> float:
    """How long the worker goes on."""
    began = time.monotonic()
    worker.wait(timeout=limit)
    return time.monotonic() - began


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
