"""What a run is, in words that can be kept and compared: so that no run goes on as another."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from vpng.numerics.trees import is_key
from vpng.runtime.processors import num_processors
from vpng.version import __version__

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_LONGEST = 160
_MOST = 6

PROGRAM = "program"


@dataclass(frozen=True)
class RunIdentity:
    """What must be the same for a run to go on, and what may change its last bits.

    Attributes:
        parts: names and descriptions; None for one that is not known here.
        leaves: every array of the state, by its path: type and shape.
        environment: versions and devices.
    """

    parts: Mapping[str, str | None]
    leaves: Mapping[str, str]
    environment: Mapping[str, str]

    @classmethod
    def of(
        cls, state: PyTree, parts: Mapping[str, Any], program: Callable, *arguments: PyTree
    ) -> "RunIdentity":
        """Of a run with this state.

        Args:
            state: before the first step.
            parts: names -> modules, numbers or texts, described by their fields and arrays.
            program: the function that is run; two runs whose programs differ are not the same.
            *arguments: of the program.
        """
        described: dict[str, str | None] = {}
        for name, part in parts.items():
            described[name] = _described(part)
            described[f"arrays of {name}"] = _digest(part)
        described[PROGRAM] = _program_digest(program, *arguments)
        leaves = jax.tree_util.tree_leaves_with_path(state)
        return cls(
            described,
            {jax.tree_util.keystr(path): kind_of(leaf) for path, leaf in leaves},
            _environment(),
        )

    def differences(self, found: "RunIdentity") -> list[str]:
        """How a run that was found differs from this one, in words; empty if it may go on."""
        listed = []
        for path in dict.fromkeys([*self.leaves, *found.leaves]):
            wanted, got = self.leaves.get(path), found.leaves.get(path)
            if wanted != got:
                listed.append(f"state{path}: {wanted or 'nothing'} (found {got or 'nothing'})")
        for name, wanted in self.parts.items():
            got = found.parts.get(name)
            if name == PROGRAM or wanted is None or got is None or wanted == got:
                continue
            if name.startswith("arrays of"):
                listed.append(f"{name}: other values")
            else:
                listed.append(f"{name}: {_short(wanted)} (found {_short(got)})")
        programs = self.parts[PROGRAM], found.parts.get(PROGRAM)
        if not listed and programs[0] != programs[1] and not self.changes(found):
            listed.append(
                "the computation of a step: another learning rate, rule, damping or function"
            )
        if len(listed) > _MOST:
            listed = [*listed[:_MOST], f"and {len(listed) - _MOST} more"]
        return listed

    def changes(self, found: "RunIdentity") -> list[str]:
        """What may change the last bits: other versions and devices, in words."""
        return [
            f"{name} {value or 'unset'} (was {found.environment.get(name) or 'unset'})"
            for name, value in self.environment.items()
            if value != found.environment.get(name)
        ]


def kind_of(leaf: Any) -> str:
    """The type and shape of an array, for instance float32[3,2]."""
    array = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def host_array(leaf: Any) -> np.ndarray:
    """The numbers of a leaf; of a key its words."""
    if is_key(leaf):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _environment() -> dict[str, str]:
    return {
        "vpng": __version__,
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "platform": jax.default_backend(),
        "devices": str(jax.device_count()),
        "threads": os.environ.get("NPROC") or str(num_processors()),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def _described(part: Any) -> str:
    return _ADDRESS.sub("0x", eqx.tree_pformat(part, short_arrays=True))


def _digest(part: Any) -> str | None:
    """Of all arrays; None where there are none, or some belong to other processes."""
    leaves = jax.tree.leaves(eqx.filter(part, eqx.is_array))
    if not leaves or not all(getattr(leaf, "is_fully_addressable", True) for leaf in leaves):
        return None
    found = hashlib.sha256()
    for leaf in leaves:
        _add(found, leaf)
    return found.hexdigest()


def _program_digest(program: Callable, *arguments: PyTree) -> str:
    # The arguments' arrays matter by shape alone, those inside the program by shape too: they may
    # have been computed elsewhere. Its numbers matter by value.
    closed = jax.make_jaxpr(program)(*arguments)
    found = hashlib.sha256(_ADDRESS.sub("0x", str(closed.jaxpr)).encode())
    for constant in closed.consts:
        if np.ndim(constant) == 0:
            _add(found, constant)
    return found.hexdigest()


def _add(found: Any, leaf: Array | np.ndarray) -> None:
    found.update(kind_of(leaf).encode())
    found.update(np.ascontiguousarray(host_array(leaf)).tobytes())


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST else words[: _LONGEST - 3] + "..."
