"""Compiled programs, found again by what they compute.

A program is traced every time and compiled once. Its text after tracing is all that it depends on,
so that no change of a function, a setting or a value that a function reads goes unseen. Arrays that
it captures become arguments: with other data of the same shapes it is the same program.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from vpng.numerics.jax_settings import jax_setting
from vpng.numerics.trees import is_traced
from vpng.runtime.compilation import USUAL_STEPS, Options, compiler_options
from vpng.runtime.contents import contents
from vpng.runtime.simplified import evaluated, simplified

MOST_KEPT = 128
"""Programs that a process keeps; the one that has not been used for longest goes first."""

Executable = Callable[..., list[Array]]


class _Kept:
    """The executables of this process, by the digest of their text."""

    def __init__(self) -> None:
        self._by_digest: OrderedDict[str, Executable] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, digest: str, compile_anew: Callable[[], Executable]) -> Executable:
        with self._lock:
            found = self._by_digest.get(digest)
        executable = compile_anew() if found is None else found
        with self._lock:
            self._by_digest[digest] = executable
            self._by_digest.move_to_end(digest)
            while len(self._by_digest) > MOST_KEPT:
                self._by_digest.popitem(last=False)
        return executable


_kept = _Kept()


class CompiledProgram:
    """A program that can be run."""

    def __init__(
        self,
        executable: Executable,
        constants: list[Array],
        results: Any,
        traced: Any,
        options: Options,
    ) -> None:
        """Put together.

        Args:
            executable: of the constants and the leaves of the arguments.
            constants: what the function captured.
            results: structure of what it returns.
            traced: what was compiled.
            options: with which.
        """
        self._executable, self._constants, self._results = executable, constants, results
        self._traced, self._options = traced, options

    def __call__(self, *arguments: PyTree) -> PyTree:
        """What the function returns."""
        found = self._executable(self._constants, *_arrays(arguments))
        return jax.tree.unflatten(self._results, found)

    def suits(self, num_steps: int) -> bool:
        """Whether it would be compiled in the same way for so many steps."""
        return compiler_options(self._traced, num_steps) == self._options


def compiled_program(
    function: Callable[..., PyTree],
    *arguments: PyTree,
    out_shardings: Callable[[PyTree], PyTree] | None = None,
    num_steps: int = USUAL_STEPS,
) -> CompiledProgram:
    """`function` compiled for arguments of these shapes, or found if it has been before.

    Args:
        function: pure; the program has its name.
        *arguments: pytrees of arrays.
        out_shardings: shapes of the results -> their shardings, as in `jax.jit`; None to leave them
            to the compiler.
        num_steps: of the runs that it is for: a long one is worth more of the compiler's work.
    """
    leaves, structure = _arrays(arguments), jax.tree.structure(arguments)
    shapes: list[PyTree] = []

    def on_leaves(*leaves: Array) -> list[Array]:
        result = function(*jax.tree.unflatten(structure, leaves))
        shapes[:] = [jax.tree.map(lambda leaf: jax.typeof(jnp.asarray(leaf)), result)]
        return [jnp.asarray(leaf) for leaf in jax.tree.leaves(result)]

    program = simplified(jax.make_jaxpr(on_leaves)(*leaves))
    (result,) = shapes
    constants = _arrays(program.consts)

    def called(constants: list[Array], *leaves: Array) -> list[Array]:
        return evaluated(program, constants, leaves)

    called.__name__ = getattr(function, "__name__", "program")
    placed = {}
    if out_shardings is not None:
        placed["out_shardings"] = jax.tree.leaves(jax.tree.broadcast(out_shardings(result), result))
    traced = jax.jit(called, **placed).trace(constants, *leaves)
    options = compiler_options(program, num_steps)
    executable = _executable(traced.lower(), [*constants, *leaves], options)
    return CompiledProgram(executable, constants, jax.tree.structure(result), program, options)


class AtOnce:
    """A function that runs as one program, where JAX would compile every operation.

    Traced once for arguments of each kind. Inside another program it is a part of that.
    """

    def __init__(self, function: Callable[..., PyTree], before: "AtOnce | None" = None) -> None:
        """Of a function.

        Args:
            function: pure.
            before: another one, whose programs will do if its function reads the same.
        """
        self._function, self._read = function, contents(function)
        self._programs: dict[Any, Callable[..., PyTree]] = {}
        if before is not None and self._read is not None and before._read is not None:
            same = self._read.key == before._read.key
            self._programs = before._programs if same else {}

    def __call__(self, *arguments: PyTree) -> PyTree:
        """What the function makes of the arguments; dictionaries in the order of their names."""
        # Inside jit every new array is traced, whatever it is made of.
        if any(map(is_traced, [*jax.tree.leaves(arguments), jnp.zeros(())])):
            return self._function(*arguments)
        kinds = [(jax.typeof(leaf), leaf.sharding) for leaf in _arrays(arguments)]
        kind = (jax.tree.structure(arguments), tuple(kinds))
        if kind not in self._programs:
            self._programs[kind] = compiled_program(self._function, *arguments, num_steps=1)
        return self._programs[kind](*arguments)


def _executable(lowered: Any, arguments: Sequence[Array], options: Options) -> Executable:
    text = lowered.as_text()
    # The text of a call back into Python does not say which function is called.
    if "callback" in text:
        return lowered.compile(compiler_options=options)
    devices = [str(array.sharding) for array in arguments]
    where = (devices, jax_setting("jax_default_device"), jax.default_backend())
    about = (text, sorted(options.items()), *where)
    digest = hashlib.sha256(repr(about).encode()).hexdigest()
    return _kept.find(digest, lambda: lowered.compile(compiler_options=options))


def _arrays(tree: PyTree) -> list[Array]:
    return [leaf if isinstance(leaf, jax.Array) else _put(leaf) for leaf in jax.tree.leaves(tree)]


def _put(leaf: Any) -> Array:
    # `jnp.asarray` compiles a program for every kind of array that comes from the host.
    known = hasattr(leaf, "dtype")
    return jax.device_put(np.asarray(leaf), may_alias=False) if known else jnp.asarray(leaf)
