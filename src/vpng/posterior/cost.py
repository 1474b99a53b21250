"""What was evaluated of a log density."""

from typing import NamedTuple


class Cost(NamedTuple):
    """Evaluations of a log density at one point each.

    Attributes:
        values: of itself alone.
        gradients: with its value.
        products: of its Hessian with a vector.
    """

    values: float = 0.0
    gradients: float = 0.0
    products: float = 0.0

    def plus(self, other: "Cost") -> "Cost":
        """Both together."""
        return Cost(
            self.values + other.values,
            self.gradients + other.gradients,
            self.products + other.products,
        )

    @property
    def in_gradients(self) -> float:
        """All in units of a gradient: in reverse mode a value is half of one, a product is two."""
        return self.values / 2 + self.gradients + 2 * self.products
