"""The curvature that fits the shape of the problem."""

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from vpng.curvature.base import AbstractCurvature, MetricHere, Solution
from vpng.curvature.conjugate_gradient import ConjugateGradient
from vpng.curvature.direct import Dense, Dual
from vpng.fisher.operator import FisherOperator


class Automatic(AbstractCurvature[Float[Array, " P"]]):
    """`Dense`, `Dual` or `ConjugateGradient`, chosen by the numbers of rows and parameters.

    Attributes:
        dense_limit: most parameters P for which P x P is formed.
        dual_limit: most rows M for which M x M is formed.
        factor_limit: most entries of the M x P factor that `Dual` forms.
        iterative: used where both are larger.
    """

    dense_limit: int = eqx.field(default=1500, static=True)
    dual_limit: int = eqx.field(default=2000, static=True)
    factor_limit: int = eqx.field(default=2**28, static=True)
    iterative: ConjugateGradient = ConjugateGradient()

    def chosen(self, operator: FisherOperator) -> AbstractCurvature:
        """The representation used for `operator`."""
        rows, parameters = operator.num_rows, operator.num_parameters
        fits = rows <= self.dual_limit and rows * parameters <= self.factor_limit
        if rows < parameters and fits:
            return Dual()
        if parameters <= self.dense_limit:
            return Dense()
        return self.iterative

    def init(self, parameters: PyTree) -> Float[Array, " P"]:
        return self.iterative.init(parameters)

    def solve(
        self,
        metric: MetricHere,
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
