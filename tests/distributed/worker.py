"""A program for the tests of several devices and processes: trains, and prints what came out.

JAX fixes its devices when it starts, so these runs have a process, or several, of their own.
"""

import argparse
import functools
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

parser = argparse.ArgumentParser()
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--float32", action="store_true")
parser.add_argument("--methods", default="dense,dual,cg,block,tridiagonal")
parser.add_argument("--plan", choices=("quick", "full"))
parser.add_argument("--coordinator")
parser.add_argument("--num-processes", type=int)
parser.add_argument("--process-id", type=int)
parser.add_argument("--setting", default="same")
parser.add_argument("--tried", help="a setting to be refused with, before the run")
parser.add_argument("--hidden", type=int, nargs="*", default=())
parser.add_argument("--checkpoints", type=Path)
parser.add_argument("--reference", action="store_true")
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--slow", type=float, default=0.0)
parser.add_argument("--heartbeat", type=int, default=60)
options = parser.parse_args()

# Besides those of conftest.py, if a test has started this.
os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        f"--xla_force_host_platform_device_count={options.devices}",
    ]
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from jax._src.interpreters import mlir
from numpyro.infer.autoguide import AutoNormal

import vpng
from vpng.distributed import Layout, Sharded, agree, join, make_mesh
from vpng.kronecker import Kronecker, KroneckerTridiagonal, discover
from vpng.numpyro import SVI
from vpng.problems import mlp_vae
from vpng.training import Blocks, Checkpoints, EverySteps

# As in conftest.py.
mlir.make_ir_context = functools.cache(mlir.make_ir_context)

NUM_DATA, BATCH = 67, 16

if options.coordinator:
    join(
        options.coordinator,
        options.num_processes,
        options.process_id,
        heartbeat_seconds=options.heartbeat,
    )
    if options.tried:
        try:
            agree({"setting": options.tried})
        except vpng.InputError as error:
            print(f"refused: {error}", file=sys.stderr, flush=True)
    agree({"setting": options.setting})
jax.config.update("jax_enable_x64", not options.float32)

images = (np.random.default_rng(0).uniform(size=(NUM_DATA, 12)) < 0.3).astype(float)
problem, params, data = mlp_vae(
    jax.random.key(0), images, latent_dim=3, hidden=tuple(options.hidden)
)
rows = vpng.Predictive(vpng.Probed(2), num_particles=2)
probe = vpng.Predictive(vpng.Probed(1), num_particles=1)
structure = discover(problem, params, data[:BATCH], probe)


def optimizer(method: str) -> optax.GradientTransformation:
    """VPNG with one of the curvatures."""
    if method == "eigenbasis":
        return vpng.optimizers.network_vpng(
            problem, params, data, 0.02, batch_size=BATCH, statistics_period=5
        )
    curvatures = {
        "dense": vpng.Dense(),
        "dual": vpng.Dual(),
        "cg": vpng.ConjugateGradient(rtol=1e-13, max_steps=200),
        "block": Kronecker(structure, diagonal_outputs=True),
        "tridiagonal": KroneckerTridiagonal(structure, diagonal_outputs=True),
    }
    layered = method in ("block", "tridiagonal")
    return vpng.optimizers.vpng(
        problem,
        0.03 if layered else 0.2,
        rule=optax.scale_by_adam() if layered else optax.identity(),
        metric=probe if layered else rows,
        curvature=curvatures[method],
        damping=0.1 if layered else 0.5,
    )


def train(method, source, mesh, batch_size=BATCH, **extra):
    """The parameters after the steps, as one vector."""
    result = vpng.fit(
        problem,
        params,
        source,
        optimizer(method),
        options.steps,
        jax.random.key(1),
        objective=vpng.ELBO(3),
        batch_size=batch_size,
        record_every=10,
        progress=False,
        mesh=mesh,
        **extra,
    )
    leaves = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(result.params)]
    return np.concatenate(leaves)


class Case(NamedTuple):
    """One comparison with a single device."""

    method: str
    count: int
    in_blocks: bool = False
    sharded: bool = False
    all_data: bool = False

    @property
    def name(self) -> str:
        """What differs."""
        words = [f"{field}" for field, value in self._asdict().items() if value is True]
        return " ".join([self.method, f"on {self.count}", *words])


def cases() -> list[Case]:
    """A few that touch everything, or all combinations."""
    if options.plan == "quick":
        return [
            Case("dense", 2, in_blocks=True),
            Case("dual", 4, in_blocks=True),
            Case("cg", 8, in_blocks=True),
            Case("block", 8, sharded=True, all_data=True),
            Case("tridiagonal", 4),
        ]
    methods = options.methods.split(",")
    plain = [Case(method, count) for method in methods for count in (1, 2, 4, 8)]
    varied = [Case(method, 4, sharded=True) for method in methods]
    varied += [Case(method, 8, in_blocks=True) for method in methods]
    return plain + varied + [Case(method, 8, all_data=True) for method in methods]


def on_devices() -> dict:
    """Of every case the difference from one device, and how far the run went.

    In the quick plan the dual solve and CG are compared with the dense solve on one device: they
    solve the same equations.
    """
    start = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(params)])
    alone: dict[tuple, np.ndarray] = {}
    found = {}
    for case in cases():
        same_as = "dense" if options.plan == "quick" and case.in_blocks else case.method
        kind = (same_as, case.in_blocks, case.all_data)
        source = Blocks.create(data) if case.in_blocks else data
        size = None if case.all_data else BATCH
        if kind not in alone:
            alone[kind] = train(same_as, source, None, size)
        layout = Layout(make_mesh(jax.devices()[: case.count]))
        if case.sharded:
            layout = replace(layout, parameters=Sharded(min_size=1))
        many = train(case.method, source, layout, size)
        found[case.name] = {"differs": far(many, alone[kind]), "moved": far(many, start)}
        print(case.name, found[case.name], file=sys.stderr, flush=True)
    return found | svi_on_devices()


def svi_on_devices() -> dict:
    """The same for the NumPyro front door, on a number of devices that does not divide the data."""
    features = np.random.default_rng(1).normal(size=(31, 3))
    labels = (features @ np.array([1.0, -2.0, 0.5]) > 0).astype(float)

    def model(features, labels):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("data", len(labels)):
            numpyro.sample("labels", dist.Bernoulli(logits=features @ weights), obs=labels)

    def fitted(mesh) -> np.ndarray:
        svi = SVI(model, AutoNormal(model), mesh=mesh)
        run = svi.run(jax.random.key(0), options.steps, features, labels, progress_bar=False)
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(run.params)])

    alone, many = fitted(None), fitted(make_mesh(jax.devices()[:3]))
    return {"svi on 3": {"differs": far(many, alone), "moved": float(np.max(np.abs(alone)))}}


def far(first: np.ndarray, second: np.ndarray) -> float:
    """The largest difference."""
    return float(np.max(np.abs(first - second)))


def as_processes() -> dict:
    """The parameters of a run in which each process reads its own rows alone."""
    layout = Layout(make_mesh())
    read: list[int] = []

    def own(chosen: np.ndarray) -> np.ndarray:
        read.extend(chosen.tolist())
        return images[chosen]

    def slowly(record, state) -> None:
        print(f"step {record.iteration}", file=sys.stderr, flush=True)
        time.sleep(options.slow)

    extra = {"callbacks": [slowly]} if options.slow else {}
    if options.checkpoints:
        kept = Checkpoints(options.checkpoints, every=EverySteps(10))
        extra |= {"checkpoints": kept, "resume": True}
    found = {}
    for method in options.methods.split(","):
        source = Blocks.of_process(layout, own, NUM_DATA)
        found[method] = train(method, source, layout, **extra).tolist()
    answer = {"params": found, "read": sorted(set(read))}
    if options.reference:
        source = Blocks.of_process(layout, own, NUM_DATA)
        methods = options.methods.split(",")
        answer["alone"] = {method: train(method, source, layout).tolist() for method in methods}
    return answer


print("RESULT " + json.dumps(on_devices() if options.plan else as_processes()), flush=True)
