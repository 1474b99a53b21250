"""When a process of a run is lost: the others stop, and say so."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import jax

HEARTBEAT_SECONDS = 20
"""A process that is silent for so long is lost: frozen, or cut off from the network."""

_SIGNS = ("gloo", "nccl", "connection", "coordination", "heartbeat", "unavailable", "deadline")


class LostProcessError(RuntimeError):
    """Another process of the run was killed, or its machine is gone."""


@contextmanager
def stopping_if_lost() -> Iterator[None]:
    """Errors of collectives inside as `LostProcessError`, where there are several processes.

    A process that is killed closes its connections, which the others see in their next collective.
    One that is frozen or cut off is found by its missing heartbeats: JAX then ends the others.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        text = str(error).lower()
        if jax.process_count() == 1 or not any(sign in text for sign in _SIGNS):
            raise
        atexit.register(_leave)
        reason = str(error).splitlines()[0]
        raise LostProcessError(
            f"process {jax.process_index()} of {jax.process_count()}: another process of this run "
            f"is gone, so it cannot go on ({reason}). What was last checkpointed is whole: start "
            "again with resume and as many processes as there are."
        ) from error


def _leave() -> None:
    """End without JAX's goodbye, which waits for the lost process and then aborts."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
