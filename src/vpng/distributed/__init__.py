"""Past one device and one machine, on JAX's own runtime."""

from vpng.distributed.divided import Task, divided
from vpng.distributed.layout import (
    AbstractPlacement,
    Layout,
    Replicated,
    Sharded,
    active_layout,
    make_mesh,
)

__all__ = [
    "AbstractPlacement",
    "Layout",
    "Replicated",
    "Sharded",
    "Task",
    "active_layout",
    "divided",
    "make_mesh",
]
