"""What a compiled program sends between devices, read from its text."""

import re
from dataclasses import dataclass
from math import prod

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
SIZES |= {"s64": 8, "u64": 8, "f64": 8}

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_OPERATION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z\-]+)\(")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")


@dataclass(frozen=True)
class Collective:
    """One operation between devices.

    Attributes:
        kind: which.
        size: bytes of its result on one device.
        buffers: arrays that it sends, between processes one after the other.
        inside: the kinds of control flow around it, outermost first.
    """

    kind: str
    size: int
    buffers: int
    inside: tuple[str, ...]

    def sent(self, num_devices: int) -> float:
        """Bytes that one of `num_devices` devices sends, by the algorithms on a ring."""
        away = (num_devices - 1) / num_devices
        match self.kind:
            case "all-reduce":
                return 2 * away * self.size
            case "reduce-scatter":
                return away * self.size * num_devices
            case "collective-permute":
                return float(self.size)
            case _:
                return away * self.size

    @property
    def depth(self) -> int:
        """Conditionals around it: none for what happens in every step."""
        return self.inside.count("conditional")


def collectives(text: str) -> list[Collective]:
    """Every collective of a compiled program."""
    lines: dict[str, list[str]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            current = head[1]
            lines[current] = []
            if line.startswith("ENTRY"):
                entry = current
        elif current:
            lines[current].append(line)

    found: list[Collective] = []

    def visit(name: str, inside: tuple[str, ...]) -> None:
        for line in lines.get(name, ()):
            operation = _OPERATION.match(line)
            if operation is None:
                continue
            shapes, kind = operation.groups()
            kind = kind.removesuffix("-start")
            if kind in KINDS:
                found.append(Collective(kind, _bytes(shapes), len(_SHAPE.findall(shapes)), inside))
                continue
            called = _CALLED.findall(line)
            for branches in _BRANCHES.findall(line):
                called += [branch.strip().lstrip("%") for branch in branches.split(",")]
            deeper = (*inside, kind) if kind in ("while", "conditional") else inside
            for other in called:
                visit(other, deeper)

    visit(entry, ())
    return found


def _bytes(shapes: str) -> int:
    return sum(
        SIZES.get(kind, 0) * prod(int(size) for size in sizes.split(",") if size)
        for kind, sizes in _SHAPE.findall(shapes)
    )
