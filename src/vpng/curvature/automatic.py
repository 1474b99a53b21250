"""The curvature that fits the shape of the problem."""

from jaxtyping import Array, Float, PyTree

from vpng.curvature.base import AbstractCurvature, MakeOperator, Solution
from vpng.curvature.conjugate_gradient import ConjugateGradient
from vpng.curvature.direct import Dense, Dual
from vpng.fisher.operator import FisherOperator
from vpng.numerics import cost


class Automatic(AbstractCurvature[Float[Array, " P"]]):
    """`Dense`, `Dual` or `ConjugateGradient`: the cheapest for this many rows and parameters.

    Attributes:
        iterative: used where a matrix would cost more than all the products that it may take.
    """

    iterative: ConjugateGradient = ConjugateGradient()

    def chosen(self, operator: FisherOperator) -> AbstractCurvature:
        """The representation used for `operator`."""
        rows, parameters = operator.num_rows, operator.num_parameters
        place = cost.cheapest(
            cost.dense(rows, parameters),
            cost.dual(rows, parameters),
            cost.products(self.iterative.most_products(parameters), rows, parameters),
        )
        return (Dense(), Dual(), self.iterative)[place]

    def init(self, parameters: PyTree) -> Float[Array, " P"]:
        return self.iterative.init(parameters)

    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: Float[Array, " P"],
    ) -> Solution[Float[Array, " P"]]:
        chosen = self.chosen(metric())
        if isinstance(chosen, ConjugateGradient):
            return chosen.solve(metric, gradient, damping, state)
        solution = chosen.solve(metric, gradient, damping, ())
        return Solution(solution.direction, state, solution.info)


def auto() -> Automatic:
    """The curvature chosen by shape."""
    return Automatic()
