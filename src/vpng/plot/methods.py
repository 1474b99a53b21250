"""The methods of the paper, by the names used everywhere."""

from enum import StrEnum


class Method(StrEnum):
    """How the gradient of the ELBO is turned into a direction."""

    GRADIENT = "gradient"
    NATURAL_GRADIENT = "natural_gradient"
    VPNG = "vpng"
    VPNG_BLOCK = "vpng_block"
    VPNG_EIGENBASIS = "vpng_eigenbasis"
    HESSIAN_FREE = "hessian_free"

    @property
    def label(self) -> str:
        """The name in tables and figures."""
        return _LABELS[self]


_LABELS = {
    Method.GRADIENT: "Gradient",
    Method.NATURAL_GRADIENT: "Natural gradient",
    Method.VPNG: "VPNG",
    Method.VPNG_BLOCK: "VPNG, block-diagonal",
    Method.VPNG_EIGENBASIS: "VPNG, eigenbasis",
    Method.HESSIAN_FREE: "Hessian-free",
}


def is_vpng(name: str) -> bool:
    """Whether this is the name of VPNG in any representation."""
    return name in (Method.VPNG, Method.VPNG_BLOCK, Method.VPNG_EIGENBASIS)


def label_of(name: str) -> str:
    """The label of a method, or of anything else that has curves, by its name."""
    known = {method.value: method.label for method in Method}
    return known.get(name, name.replace("_", " ").capitalize())
