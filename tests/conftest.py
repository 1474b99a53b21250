"""What all tests share: float64 on demand, quick compilation and reproducible property tests."""

import atexit
import functools
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from plain_compilation import environment

# Most of the time goes into compiling programs that run once. What one test, worker or process that
# a test starts has compiled, the others read: the first to come here is the process that starts the
# workers, and it is the last to go.
if "VPNG_TESTS_COMPILED" not in os.environ:
    folder = tempfile.mkdtemp(prefix="vpng-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ.update(environment(folder), VPNG_TESTS_COMPILED=folder)

import jax
import jaxtyping
import pytest
from hypothesis import HealthCheck, settings
from jax._src.interpreters import mlir

# Every argument and result of these rooms is checked against its annotation, shapes included.
CHECKED = ["vpng.numerics"]
jaxtyping.install_import_hook(CHECKED, "checked_types.check")

# A new context for every program takes a quarter of the tests' time: one serves them all.
mlir.make_ir_context = functools.cache(mlir.make_ir_context)

settings.register_profile(
    "vpng",
    deadline=None,
    derandomize=True,
    max_examples=5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("vpng")
# pytest --hypothesis-profile thorough: other examples every time, and many.
settings.register_profile(
    "thorough", settings.get_profile("vpng"), derandomize=False, max_examples=100
)


TAKE_LONGEST = ("distributed/", "training/test_killed_runs", "cli/", "numpyro/")


def pytest_collection_modifyitems(items):
    """The files that take longest begin, so that no worker waits for another at the end."""
    items.sort(key=lambda item: not any(part in item.nodeid for part in TAKE_LONGEST))


def pytest_collection_finish():
    """Tracing makes objects by the million: look for garbage rarely, and not among the modules."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(autouse=True)
def heard_interrupts():
    """A shell in the background starts its commands with SIGINT ignored; the tests send some."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def x64():
    """Double precision inside this test alone, so that float32 tests coexist in the same run."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def vpng(monkeypatch, capsys):
    """Runs `vpng ARGUMENTS` in this process and returns its exit code, output and errors."""
    from vpng.paper.cli.app import main

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["vpng", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
