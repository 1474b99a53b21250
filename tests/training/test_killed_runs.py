"""A run killed with SIGKILL at random moments ends in the bits of a run left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "soak_resume.py"

pytestmark = pytest.mark.endurance


def test_a_run_killed_again_and_again_ends_in_the_same_bits(tmp_path):
    """Minibatches, Kronecker averages, adaptive damping; more kills: run the tool by itself.

    The attempts share what the first of them compiles.
    """
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    options = ["--kills", "2", "--steps", "200", "--longest", "0.5", "--small", "--seed", "4"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(TOOL), *options],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **cache},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["same_bits"]
    assert report["kills"] == 2
    assert report["end"]["steps"] == 200
