"""How many cores there are."""

import os


def num_processors() -> int:
    """Processors that this process may run on: XLA divides sums among as many threads."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
