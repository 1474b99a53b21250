"""Several processes as one: joining, and agreeing on what is to be done."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

import jax
import numpy as np

from vpng.checks import positive_integer
from vpng.distributed.faults import HEARTBEAT_SECONDS, stopping_if_lost
from vpng.errors import InputError, expected
from vpng.numerics.jax_settings import jax_setting
from vpng.version import __version__

Choice = TypeVar("Choice")

JOIN_SECONDS = 120
_LIBRARIES = ("jax", "jaxlib", "numpy", "numpyro", "optax", "equinox", "lineax")


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
    join_seconds: int = JOIN_SECONDS,
) -> None:
    """Join the other processes of this run; before anything else that uses JAX.

    Under SLURM, Open MPI and Kubernetes JAX finds out by itself who they are. On plain hosts, say
    it: the same `coordinator` and `num_processes` everywhere, and on each its own `process_id`.

    Args:
        coordinator: host:port of process 0, where it listens.
        num_processes: how many there are.
        process_id: which this one is, from 0.
        heartbeat_seconds: after so much silence a process counts as lost, and the others end.
        join_seconds: how long to wait for the others at the start.

    Raises:
        InputError: for arguments that do not fit, or if the others do not come.
    """
    _check(coordinator, num_processes, process_id)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=positive_integer("join_seconds", join_seconds),
            heartbeat_timeout_seconds=positive_integer("heartbeat_seconds", heartbeat_seconds),
            shutdown_timeout_seconds=heartbeat_seconds,
        )
    except (RuntimeError, ValueError) as error:
        if coordinator is None:
            remedy = "or give --coordinator, --num-processes and --process-id"
            wanted = f"a job of SLURM, Open MPI or Kubernetes, {remedy}"
            raise expected("distributed", wanted, str(error).splitlines()[0]) from error
        wanted = f"{num_processes} processes at {coordinator} within {join_seconds} s"
        raise expected("coordinator", wanted, str(error).splitlines()[0]) from error


def is_first() -> bool:
    """Whether this process writes the results: the first one, and the only one."""
    return jax.process_index() == 0


def agree(settings: Mapping[str, Any]) -> None:
    """Refuse to start unless every process has the same settings and libraries.

    Args:
        settings: numbers, texts and lists of them.

    Raises:
        InputError: which process has what instead.
    """
    if jax.process_count() == 1:
        return
    mine = json.dumps({**_environment(), **settings}, sort_keys=True, default=str)
    documents = [json.loads(text) for text in _everyones(mine)]
    for process, document in enumerate(documents):
        keys = dict.fromkeys([*documents[0], *document])
        differing = [
            f"{key} {document.get(key)} (process 0 has {documents[0].get(key)})"
            for key in keys
            if document.get(key) != documents[0].get(key)
        ]
        if differing:
            raise InputError(
                f"process {process}: expected the configuration and libraries of process 0, got "
                f"{'; '.join(differing)}. Start all processes with the same ones."
            )


def from_first(compute: Callable[[], Any]) -> Any:
    """What `compute` gives on the first process: numbers, texts and trees of them.

    Raises:
        InputError: on all processes, if it does on the first.
    """
    if jax.process_count() == 1:
        return compute()
    answer: dict[str, Any] = {}
    if is_first():
        try:
            answer = {"value": compute()}
        except InputError as error:
            answer = {"error": str(error)}
    answer = json.loads(_everyones(json.dumps(answer))[0])
    if "error" in answer:
        raise InputError(answer["error"])
    return answer["value"]


def arrays_from_first(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The bits of the first process's arrays, whose shapes and types all processes have."""
    if jax.process_count() == 1:
        return list(arrays)
    from jax.experimental.multihost_utils import broadcast_one_to_all

    # As bytes: what is sent is summed with the zeros of the others, and -0 + 0 is 0.
    with stopping_if_lost():
        sent = broadcast_one_to_all([np.frombuffer(a.tobytes(), np.uint8) for a in arrays])
    return [
        np.frombuffer(np.asarray(content).tobytes(), array.dtype).reshape(array.shape)
        for content, array in zip(sent, arrays, strict=True)
    ]


def agreed(choice: Choice | None, choices: Sequence[Choice]) -> Choice | None:
    """What the first process that has chosen chose: signals and clocks differ from one to another.

    Args:
        choice: of this process; None for no choice.
        choices: all there can be, in the same order everywhere.
    """
    if jax.process_count() == 1:
        return choice
    mine = -1 if choice is None else choices.index(choice)
    with stopping_if_lost():
        numbers = _gathered(np.array(mine, np.int32)).ravel()
    made = [number for number in numbers if number >= 0]
    return choices[made[0]] if made else None


def in_any_process(condition: bool) -> bool:
    """Whether it holds in one of the processes, known to all."""
    return agreed(True if condition else None, (True,)) is not None


def _environment() -> dict[str, Any]:
    versions = {name: version(name) for name in _LIBRARIES}
    return {
        "vpng": __version__,
        **versions,
        "float64": bool(jax_setting("jax_enable_x64")),
        "random numbers independent of sharding": bool(jax_setting("jax_threefry_partitionable")),
    }


def _everyones(text: str) -> list[str]:
    """The text of every process, in order."""
    words = np.frombuffer(text.encode(), np.uint8)
    with stopping_if_lost():
        lengths = _gathered(np.array(words.size, np.int32)).ravel()
        rows = _gathered(np.pad(words, (0, int(lengths.max()) - words.size)))
    return [bytes(row[:size]).decode() for row, size in zip(rows, lengths, strict=True)]


def _gathered(array: np.ndarray) -> np.ndarray:
    """The array of every process, one after the other along a first axis."""
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(array))


def _check(coordinator: str | None, num_processes: int | None, process_id: int | None) -> None:
    given = (coordinator, num_processes, process_id)
    if all(value is None for value in given):
        return
    if coordinator is None or num_processes is None or process_id is None:
        missing = "coordinator, num_processes and process_id together, or none of them"
        raise expected("coordinator", missing, given)
    if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^\s:]+):\d{1,5}", coordinator):
        raise expected("coordinator", "host:port", repr(coordinator))
    positive_integer("num_processes", num_processes)
    if isinstance(process_id, bool) or process_id not in range(num_processes):
        raise expected("process_id", f"a number from 0 to {num_processes - 1}", repr(process_id))
