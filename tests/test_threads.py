"""LAPACK's threads: calmed on import, left alone on request, NumPy untouched."""

import os
import subprocess
import sys

PROGRAM = """
import numpy, vpng
from threadpoolctl import threadpool_info
libraries = [lib for lib in threadpool_info() if lib["internal_api"] == "openblas"]
print([lib["num_threads"] for lib in libraries if "scipy" in lib["filepath"].lower()])
"""


def scipy_threads(**environment: str) -> list[int]:
    env = {"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "2", **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=env
    )
    return [int(word) for word in done.stdout.strip().strip("[]").split(",") if word.strip()]


def test_scipy_gets_one_thread_unless_the_user_objects():
    calmed, kept = scipy_threads(), scipy_threads(VPNG_KEEP_BLAS_THREADS="1")
    assert set(calmed) <= {1}
    assert len(calmed) == len(kept)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert set(kept) <= {min(2, usable or 1)}
