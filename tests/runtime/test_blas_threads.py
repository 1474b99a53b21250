"""LAPACK's threads: limited by a run, not by importing, left alone on request."""

import os
import subprocess
import sys

PROGRAM = """
import numpy, vpng
{then}
from threadpoolctl import threadpool_info
libraries = [lib for lib in threadpool_info() if lib["internal_api"] == "openblas"]
print([lib["num_threads"] for lib in libraries if "scipy" in lib["filepath"].lower()])
"""


SETUP = "from vpng.distributed import layout; layout.as_layout(None)"


def scipy_threads(then: str, **environment: str) -> list[int]:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2", **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(then=then)],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    return [int(word) for word in done.stdout.strip().strip("[]").split(",") if word.strip()]


def test_scipy_gets_one_thread_unless_the_user_objects():
    limited, kept = scipy_threads(SETUP), scipy_threads(SETUP, VPNG_KEEP_BLAS_THREADS="1")
    assert set(limited) <= {1}
    assert len(limited) == len(kept)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert set(kept) <= {min(2, usable or 1)}


def test_importing_changes_no_threads():
    assert scipy_threads("import scipy.linalg") == scipy_threads(
        "import scipy.linalg", VPNG_KEEP_BLAS_THREADS="1"
    )
