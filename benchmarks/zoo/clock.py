"""Seconds for one step of several programs, measured in turns: a noisy machine is noisy for all."""

import math
import statistics
import time

import jax

from zoo.programs import Program

TURN = 0.05
"""Seconds for which every program is on the clock in one turn, at least."""


def seconds_per_step(programs: dict[str, Program], num_steps: int, rounds: int) -> dict[str, float]:
    """Seconds for one step of each: the median over turns taken one after the other.

    A turn is as many runs as take a while, each of `num_steps` from the start, since the first
    steps of vpng cost more. The call itself, timed with no steps, is subtracted: it is made once
    for hundreds of steps.
    """
    repeats = {}
    for name, program in programs.items():
        _seconds(program, 1)
        repeats[name] = math.ceil(TURN / max(_seconds(program, num_steps), 1e-6))
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            called = sum(_seconds(program, 0) for _ in range(repeats[name]))
            taken = sum(_seconds(program, num_steps) for _ in range(repeats[name]))
            times[name].append((taken - called) / (repeats[name] * num_steps))
    return {name: statistics.median(values) for name, values in times.items()}


def _seconds(program: Program, num_steps: int) -> float:
    began = time.perf_counter()
    jax.block_until_ready(program.advance(program.first, num_steps))
    return time.perf_counter() - began
