"""How hard the compiler works on a program: as hard as pays for what the program does.

The steps of a small model take a hundredth of the time that it takes to optimise them. Where little
is computed in all steps of a run, the compiler is told to be quick; a network, many rows or very
many steps get all that it can do. What is computed is counted in the traced program, never timed:
the same run gets the same options on every machine, and so the same bits.
"""

import math
import os
from typing import Any

import jax

from vpng.numerics.derivatives import parts

KEEP = "VPNG_KEEP_COMPILER_OPTIONS"
"""Set this environment variable to 1 to have every program compiled with all optimisations."""

QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
"""Options under which XLA compiles for a CPU in a third of the time."""

MOST_OPERATIONS = 20_000_000_000
"""Of a run that is compiled quickly.

Without optimisation an operation takes a quarter of a nanosecond longer, and so many of them lose
the five seconds that the compiler saved.
"""

STARTED = 400
"""What one more equation of a program costs beside its operations, for it is no longer fused."""

USUAL_STEPS = 1000
"""Of a run whose length is not known beforehand."""

Options = dict[str, bool | int | float | str]


def compiler_options(jaxpr: Any, num_steps: int = USUAL_STEPS) -> Options:
    """The options with which a traced program is to be compiled, for `jax.stages.Lowered.compile`.

    None differs from XLA's own where the run is long, on anything but a CPU, and where the user has
    set an option of the kind in `XLA_FLAGS`.

    Args:
        jaxpr: the program.
        num_steps: how often the body of its loop, or the program itself, is going to run.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    chosen = os.environ.get(KEEP, "").strip() not in ("", "0") or any(n in flags for n in QUICK)
    if chosen or jax.default_backend() != "cpu":
        return {}
    if num_steps * operations(jaxpr, STARTED) > MOST_OPERATIONS:
        return {}
    return dict(QUICK)


def operations(jaxpr: Any, started: int = 0) -> int:
    """Numbers that are read or written by a program, and products in it.

    A loop counts as often as it runs where that is known, else once; of branches the longest does.

    Args:
        jaxpr: the program.
        started: what every equation counts for besides.
    """
    return sum(_of_equation(equation, started) for equation in jaxpr.eqns)


def _of_equation(equation: Any, started: int) -> int:
    inner = [operations(part, started) for part in parts(equation)]
    name, params = equation.primitive.name, equation.params
    if inner:
        whole = max(inner) if name == "cond" else sum(inner)
        return whole * params["length"] if name == "scan" else whole
    return started + _of_one(equation)


def _of_one(equation: Any) -> int:
    name, params = equation.primitive.name, equation.params
    written = sum(_size(variable) for variable in equation.outvars)
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        return written * math.prod(shape[axis] for axis in contracted)
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        return written * math.prod(kernel) // kernel[params["dimension_numbers"].rhs_spec[0]]
    return max(written, *(_size(variable) for variable in equation.invars), 0)


def _size(variable: Any) -> int:
    return math.prod(getattr(variable.aval, "shape", ()))
