"""Whole commands in processes of their own, compiled as for users: figures, promised scores."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.endurance


def run(*arguments: str) -> str:
    """What `vpng ARGUMENTS` prints."""
    optimised = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "vpng", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=optimised)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_demo_draws_its_figures(tmp_path):
    assert "VPNG" in run("demo", "--out", str(tmp_path))
    for figure in ("toy/toy", "logistic/logistic_test_auc"):
        assert (tmp_path / f"{figure}.png").read_bytes().startswith(b"\x89PNG")


def test_vpng_holds_what_the_documents_say(tmp_path):
    chosen = ["--set", "learning_rates=[1.0]", "--set", "dampings=[3e-4]"]
    run("reproduce", "logistic", "--methods", "vpng", "--out", str(tmp_path), *chosen)
    results = json.loads((tmp_path / "results.json").read_text())
    configuration, score = results["configuration"], results["summary"]["vpng"]["test_auc"]
    assert (configuration["seeds"], configuration["iterations"]) == (10, 2000)
    assert score["mean"] >= 0.99
    assert score["std"] < 0.005
