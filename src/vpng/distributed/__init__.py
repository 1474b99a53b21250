"""Past one device and one machine, on JAX's own runtime."""

from vpng.distributed.division import Task, divided
from vpng.distributed.faults import LostProcessError
from vpng.distributed.layout import (
    AbstractPlacement,
    Layout,
    Replicated,
    Sharded,
    active_layout,
    make_mesh,
)
from vpng.distributed.processes import agree, from_first, is_first, join

__all__ = [
    "AbstractPlacement",
    "Layout",
    "LostProcessError",
    "Replicated",
    "Sharded",
    "Task",
    "active_layout",
    "agree",
    "divided",
    "from_first",
    "is_first",
    "join",
    "make_mesh",
]
