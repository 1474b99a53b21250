"""Block-diagonal K-FAC: one Kronecker product for each layer, layers taken as uncorrelated."""

from typing import ClassVar

from jaxtyping import Array, Float

from vpng.kronecker.base import AbstractKronecker, damped_factors, sandwich
from vpng.kronecker.factor_statistics import Statistics
from vpng.kronecker.inverses import inverses
from vpng.kronecker.matrices import AbstractMatrix
from vpng.kronecker.structure import Structure


class Kronecker(AbstractKronecker):
    """F approximated by diag(A_1 (x) G_1, ..., A_L (x) G_L) and the blocks of other parameters.

    The inverse times a layer's gradient V is (A + a I)^-1 V (G + g I)^-1.
    """

    couples: ClassVar[bool] = False

    def invert(
        self, structure: Structure, statistics: Statistics, damping: Float[Array, ""]
    ) -> dict[str, tuple[AbstractMatrix, AbstractMatrix]]:
        damped = damped_factors(statistics, self.factor_damping, damping)
        found = iter(inverses(damped, self.rank))
        return {name: (next(found), next(found)) for name in statistics.layers}

    def multiply(
        self,
        structure: Structure,
        inverse: dict[str, tuple[AbstractMatrix, AbstractMatrix]],
        matrices: dict[str, Float[Array, "n m"]],
    ) -> dict[str, Float[Array, "n m"]]:
        return {
            name: sandwich(inverse[name][0], matrix, inverse[name][1])
            for name, matrix in matrices.items()
        }
