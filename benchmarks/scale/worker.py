"""One process of the scaling benchmark; the first one prints a JSON object."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("task", choices=("bytes", "time", "collectives", "sweep"))
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--coordinator")
parser.add_argument("--num-processes", type=int)
parser.add_argument("--process-id", type=int)
parser.add_argument("--case", default="vae")
parser.add_argument("--batches", default="600")
parser.add_argument("--methods", default="gradient")
parser.add_argument("--sizes", default="")
parser.add_argument("--invert-once", action="store_true")
parser.add_argument("--sweep", choices=("width", "batch", "particles"))
parser.add_argument("--values", default="")
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--rounds", type=int, default=3)
options = parser.parse_args()

os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={options.devices} --xla_cpu_multi_thread_eigen=false"
)
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from vpng.distributed import Layout, is_first, join, make_mesh

if options.coordinator:
    join(
        options.coordinator,
        options.num_processes,
        options.process_id,
        heartbeat_seconds=600,
    )

from scale.cases import CASES, STATISTICS_PERIOD, SWEPT, Program, factor_bytes, program, vae
from scale.collectives import collectives

BATCHES = [int(size) for size in options.batches.split(",")]
METHODS = options.methods.split(",")
SLOW_SECONDS = 2.0
MEMORY = 0.6 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
"""Programs that need more are compiled and not run."""


def layout_of_all() -> Layout | None:
    """All devices of all processes; none for one."""
    return Layout(make_mesh()) if jax.device_count() > 1 else None


def bytes_sent() -> dict:
    """Of every method the bytes that one device sends in a step, and what they may be."""
    layout = layout_of_all()
    assert layout is not None
    count = layout.num_devices
    case = CASES[options.case](BATCHES[0])
    parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(case.params))
    found = {}
    for method in METHODS:
        made = program(case, method, layout)
        periods = {
            "every step": 1,
            "statistics": STATISTICS_PERIOD,
            "inverses": case.inverse_period,
        }
        sent, messages = dict.fromkeys(periods, 0.0), 0.0
        for one in collectives(made.text):
            refresh = "statistics" if one.kind == "all-reduce" else "inverses"
            kind = "every step" if one.depth == 0 else refresh
            sent[kind] += one.sent(count)
            messages += one.buffers / periods[kind]
        ring = 2 * (count - 1) / count
        a_step = sum(sent[kind] / period for kind, period in periods.items())
        # With the gradient goes the loss: of every particle, and their mean.
        losses = 4 * (case.num_particles + 1)
        limit = ring * (parameters + losses + factor_bytes(made.state) / STATISTICS_PERIOD)
        found[method] = {
            **sent,
            "a step": a_step,
            "gradient and factors": limit,
            "ratio": a_step / limit,
            "messages": messages,
        }
    return found


def seconds_a_step(
    made: Program, steps: int, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The least of several rounds, each beginning with a refresh; a first slow one is enough."""

    def one_round(count: int) -> float:
        began = clock()
        jax.block_until_ready(made.run(made.state, made.data, np.int32(count)))
        return (clock() - began) / count

    first = one_round(STATISTICS_PERIOD)
    # Processes that saw different times would part here.
    if first > SLOW_SECONDS and jax.process_count() == 1:
        return first
    return min(one_round(steps) for _ in range(rounds))


def times() -> dict:
    """Seconds a step by method and global batch."""
    layout = layout_of_all()
    found: dict = {}
    for size in BATCHES:
        case = CASES[options.case](size)
        if options.invert_once:
            case = case._replace(inverse_period=10**6)
        for method in METHODS:
            made = program(case, method, layout)
            found.setdefault(method, {})[str(size)] = seconds_a_step(
                made, options.steps, options.rounds
            )
            print(method, size, found[method][str(size)], file=sys.stderr, flush=True)
    return found


def collective_times() -> dict:
    """Seconds of an all-reduce by bytes."""
    layout = layout_of_all()
    assert layout is not None
    found = {}
    for size in (int(size) for size in options.sizes.split(",")):
        parts = layout.put(
            np.ones((layout.num_devices, size // 4), np.float32), layout.divided_along(0)
        )

        def reduced(parts: jax.Array, count: jax.Array) -> jax.Array:
            def body(_: jax.Array, carry: jax.Array) -> jax.Array:
                total = jnp.sum(parts * carry[0], axis=0)
                return jax.lax.with_sharding_constraint(total, layout.everywhere) * 0.5

            start = jnp.ones(parts.shape[1], jnp.float32)
            return jax.lax.fori_loop(0, count, body, start)

        run = jax.jit(reduced, out_shardings=layout.everywhere)
        jax.block_until_ready(run(parts, np.int32(2)))
        took = []
        for _ in range(options.rounds):
            began = time.perf_counter()
            jax.block_until_ready(run(parts, np.int32(options.steps)))
            took.append((time.perf_counter() - began) / options.steps)
        found[str(size)] = min(took)
    return found


def swept() -> dict:
    """Step time, None where it does not fit, and memory of every method by one size."""
    settings = {"batch_size": 600, "width": 200, "num_particles": 1}
    name = {"width": "width", "batch": "batch_size", "particles": "num_particles"}[options.sweep]
    found: dict = {}
    for value in (int(value) for value in options.values.split(",")):
        case = vae(**{**settings, name: value})
        for method in SWEPT:
            made = program(case, method, None)
            seconds = None
            if made.memory < MEMORY:
                # Of the only thread: what else runs on the machine does not count.
                seconds = seconds_a_step(
                    made, 2 * STATISTICS_PERIOD, options.rounds, time.process_time
                )
            point = {"seconds": seconds, "memory": made.memory}
            found.setdefault(method, {})[str(value)] = point
            print(name, value, method, point, file=sys.stderr, flush=True)
    return found


TASKS = {"bytes": bytes_sent, "time": times, "collectives": collective_times, "sweep": swept}
answer = TASKS[options.task]()
if is_first():
    print("RESULT " + json.dumps(answer), flush=True)
