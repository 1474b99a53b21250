"""Documents of results with known answers."""

import json
from pathlib import Path

import numpy as np

from vpng.paper.experiments.results import Headline, Results, Run

ELBO = Headline("test_elbo", "test ELBO", axes=("seconds", "iteration"))


def run(method, seed, slope, *, pace=1.0, start=-100.0, steps=10):
    """A test ELBO that rises by `slope` a step from `start`, a step taking `pace` seconds."""
    iteration = list(range(1, steps + 1))
    return Run(
        method=method,
        seed=seed,
        learning_rate=0.1,
        params_sha256="0" * 64,
        curves={
            "iteration": iteration,
            "seconds": [pace * i for i in iteration],
            "test_elbo": [start + slope * i for i in iteration],
            "loss": [-(start + slope * i) for i in iteration],
        },
    )


def document(runs, *, headline=ELBO, experiment="made-up", **extra):
    summary = {r.method: {} for r in runs}
    results = Results(experiment, {"seeds": 2, "rates": [0.1]}, runs, summary, extra, {}, headline)
    return json.loads(results.to_json((["Method", "ELBO"], [["<b>VPNG</b>", "-1"]])))


def two_methods(ours=8.0, theirs=4.0, *, seeds=3, jitter=0.05, **options):
    """VPNG and the gradient, whose slopes differ a little from seed to seed."""
    steps = jitter * (np.arange(seeds) - (seeds - 1) / 2)
    return [run("vpng", s, ours + d, **options) for s, d in enumerate(steps)] + [
        run("gradient", s, theirs + d) for s, d in enumerate(steps)
    ]


def write(folder: Path, made: dict) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(made))
    return folder
