"""Kills a run at random moments, resumes it each time, and compares its end with a run left alone.

The run has minibatches, Kronecker factors with moving averages and a damping that adapts. Writing
is slowed down, so that many of the kills come in the middle of it. The process that kills never
starts a JAX backend itself: every attempt is a fork of it that starts its own.

    python tools/soak_resume.py --kills 40
"""

import argparse
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

import vpng.run.logbook
import vpng.storage.files
from vpng import LevenbergMarquardt, Predictive, Probed, fit, optimizers
from vpng.kronecker import Kronecker, KroneckerTridiagonal, discover
from vpng.problems import mlp_vae
from vpng.run.identity import host_array
from vpng.training import Checkpoints, EverySteps

RECORD_EVERY = 10


def train(folder: Path, num_steps: int, small: bool, checkpoints: bool) -> None:
    """Run to the end, or as far as it gets; leave a digest of everything that came out."""
    import jax

    pixels = np.random.default_rng(0).random((60, 12)) < 0.3
    problem, params, data = mlp_vae(
        jax.random.key(0),
        pixels.astype(np.float32),
        latent_dim=3,
        hidden=() if small else (8,),
    )
    metric = Predictive(Probed(1), num_particles=1)
    structure = discover(problem, params, data[:16], metric)
    kind = Kronecker if small else KroneckerTridiagonal
    optimizer = optimizers.vpng(
        problem,
        0.01,
        metric=metric,
        curvature=kind(structure, decay=0.9, statistics_period=3, inverse_period=3),
        damping=LevenbergMarquardt(initial=0.1, period=5),
    )

    def started(record, state) -> None:
        (folder / "started").touch()

    result = fit(
        problem,
        params,
        data,
        optimizer,
        num_steps,
        jax.random.key(1),
        batch_size=16,
        record_every=RECORD_EVERY,
        progress=False,
        callbacks=[started],
        checkpoints=Checkpoints(folder / "run", every=EverySteps(RECORD_EVERY))
        if checkpoints
        else None,
        resume=checkpoints,
    )
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(result.state):
        digest.update(host_array(leaf).tobytes())
    digest.update(result.history.step_losses.tobytes())
    for record in result.history.records:
        digest.update(repr((record.iteration, record.loss, record.rejected)).encode())
    vpng.storage.files.write_atomically(
        folder / "end.json",
        lambda path: (
            path.write_text(
                json.dumps(
                    {
                        "sha256": digest.hexdigest(),
                        "steps": len(result.history.step_losses),
                        "records": len(result.history),
                        "loss": result.history.records[-1].loss,
                    }
                )
            )
            and None
        ),
    )


def slow_down_writing(seconds: float) -> None:
    """Pause in the middle of a file, before it is flushed, and after the history is."""
    writestr, synchronise, flush = (
        zipfile.ZipFile.writestr,
        vpng.storage.files.synchronise,
        os.fsync,
    )

    def paused(real):
        def call(*args, **kwargs):
            time.sleep(random.uniform(0.0, seconds))
            return real(*args, **kwargs)

        return call

    zipfile.ZipFile.writestr = paused(writestr)
    vpng.storage.files.synchronise = paused(synchronise)
    vpng.run.logbook.os.fsync = paused(flush)


def attempt(folder: Path, options: argparse.Namespace, *, checkpoints: bool) -> int:
    """Start the run in a process of its own; its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        random.seed(os.getpid())
        slow_down_writing(options.pause if checkpoints else 0.0)
        train(folder, options.steps, options.small, checkpoints)
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def wait_to_kill(child: int, folder: Path, longest: float) -> bool:
    """Kill the child at a random moment, one in five before its first record; False if it ended."""
    (folder / "started").unlink(missing_ok=True)
    early = random.random() < 0.2
    deadline = time.monotonic() + (random.uniform(0.0, 4.0) if early else 600.0)
    while time.monotonic() < deadline and not (folder / "started").exists():
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.002)
    time.sleep(0.0 if early else random.uniform(0.0, longest))
    if os.waitpid(child, os.WNOHANG)[0]:
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


def main() -> int:
    """Zero if both runs end in the same bits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--longest", type=float, default=1.5, help="seconds before a kill")
    parser.add_argument("--pause", type=float, default=0.02, help="seconds of a pause in writing")
    parser.add_argument("--small", action="store_true", help="a smaller program to compile")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory() as name:
        alone, killed = Path(name) / "alone", Path(name) / "killed"
        alone.mkdir()
        killed.mkdir()
        if os.waitpid(attempt(alone, options, checkpoints=False), 0)[1]:
            return 1
        kills = writing = early = 0
        places = []
        while not (killed / "end.json").exists():
            child = attempt(killed, options, checkpoints=True)
            if kills < options.kills and wait_to_kill(child, killed, options.longest):
                kills += 1
                writing += any((killed / "run").glob(".*.vpng"))
                early += not (killed / "started").exists()
                steps = sorted((killed / "run").glob("step-*.vpng"))
                places.append(int(steps[-1].stem[5:]) if steps else 0)
                print(f"kill {kills}, checkpoint at step {places[-1]}", file=sys.stderr, flush=True)
            elif kills >= options.kills:
                os.waitpid(child, 0)
                break
            elif not (killed / "end.json").exists():
                print("an attempt failed by itself", file=sys.stderr)
                return 1
        ends = [json.loads((folder / "end.json").read_text()) for folder in (alone, killed)]
        same = ends[0] == ends[1]
        report = {
            "kills": kills,
            "in_the_middle_of_writing": writing,
            "before_the_first_record": early,
            "checkpoint_after_each_kill": places,
            "same_bits": same,
            "end": ends[0],
        }
        print(json.dumps(report))
        return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
