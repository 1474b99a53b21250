"""What the Kronecker-factored curvatures share: statistics, averages, periods, other blocks."""

from abc import abstractmethod
from functools import reduce
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from vpng.checks import positive_integer
from vpng.curvature.base import AbstractCurvature, MakeOperator, Solution, nonnegative, solve_info
from vpng.errors import expected
from vpng.kronecker.averages import Averages
from vpng.kronecker.factor_damping import (
    AbstractFactorDamping,
    FactoredTikhonov,
    Factors,
    mean_eigenvalue,
)
from vpng.kronecker.factor_statistics import Statistics, part, statistics, zero_statistics
from vpng.kronecker.inverses import DampedFactor
from vpng.kronecker.matrices import AbstractMatrix, AbstractRank, FullRank, inverse_root
from vpng.kronecker.repair import factor_findings, inverted_or_repaired
from vpng.kronecker.structure import Structure, by_path, with_leaves
from vpng.not_finite import NotFinite, joined

INVERSES = "inverses of the damped Fisher factors"


class Inverses(NamedTuple):
    """What is needed to multiply with the inverse of the approximate F + mu I.

    Attributes:
        layers: of the layers.
        dense: (F + mu I)^-1 of the dense block.
        diagonal: 1 / (F + mu) of the diagonal one, by path.
        condition: an upper bound on the condition number of the layers' blocks.
    """

    layers: PyTree
    dense: AbstractMatrix
    diagonal: dict[str, Float[Array, "..."]]
    condition: Float[Array, ""]


class KroneckerState(NamedTuple):
    """The state of a Kronecker-factored curvature.

    Attributes:
        step: solves done.
        averages: of the statistics.
        inverses: as last refreshed.
        repairs: what the last refresh took, see `vpng.curvature.base.FALLBACKS`.
        failed: whether the last direction was not finite.
        findings: the statistics of this step that were not finite, and whether the inverses were.
    """

    step: Int[Array, ""]
    averages: Averages
    inverses: Inverses
    repairs: Int[Array, ""]
    failed: Bool[Array, ""]
    findings: NotFinite

    def after_rejection(self) -> "KroneckerState":
        """With inverses that are due for a refresh, by then with more damping."""
        return self._replace(failed=jnp.ones((), bool))


def _checked(structure: Structure) -> Structure:
    if not isinstance(structure, Structure):
        wanted = "the result of vpng.kronecker.discover"
        raise expected("structure", wanted, type(structure).__name__)
    return structure


class AbstractKronecker(AbstractCurvature[KroneckerState]):
    """A curvature made of Kronecker products, one for each layer of a network.

    Statistics and inverses are refreshed on their own periods inside the compiled step; between
    refreshes a solve costs a few matrix products. Inverses keep the damping of their refresh.

    Attributes:
        structure: the blocks, from `discover`.
        factor_damping: how the damping is shared between the factors.
        rank: how many directions of large factors are kept.
        decay: of the moving averages of the statistics; None for the newest alone.
        statistics_period: solves from one refresh of the statistics to the next.
        inverse_period: solves from one refresh of the inverses to the next; a solve whose
            direction was not finite is followed by a refresh.
        diagonal_outputs: whether G of the last layers is diagonal: exact if the likelihood has
            independent outputs, each with its own parameters (Bernoulli, Poisson, Normal).
    """

    structure: Structure = eqx.field(static=True, converter=_checked)
    factor_damping: AbstractFactorDamping = FactoredTikhonov()
    rank: AbstractRank = FullRank()
    decay: float | None = eqx.field(default=0.95, static=True)
    statistics_period: int = eqx.field(default=5, static=True)
    inverse_period: int = eqx.field(default=5, static=True)
    diagonal_outputs: bool = eqx.field(default=False, static=True)

    couples: eqx.AbstractClassVar[bool]  # pyright: ignore[reportGeneralTypeIssues]

    def __check_init__(self) -> None:
        if self.decay is not None and not 0.0 <= self.decay < 1.0:
            raise expected("decay", "a number in [0, 1) or None", self.decay)
        positive_integer("statistics_period", self.statistics_period)
        positive_integer("inverse_period", self.inverse_period)

    @abstractmethod
    def invert(
        self, structure: Structure, statistics: Statistics, damping: Float[Array, ""]
    ) -> PyTree:
        """The inverse of the layers' damped blocks, in the form that `multiply` reads."""

    @abstractmethod
    def multiply(
        self, structure: Structure, inverse: PyTree, matrices: dict[str, Float[Array, "n m"]]
    ) -> dict[str, Float[Array, "n m"]]:
        """The inverse times the layers' gradients, as matrices by the path of the weight."""

    def init(self, parameters: PyTree) -> KroneckerState:
        self.structure.check_covers(parameters)
        structure = self.structure.restricted(parameters)
        averages = Averages.of(
            zero_statistics(
                structure,
                parameters,
                couplings=self.couples,
                diagonal_outputs=self.diagonal_outputs,
            )
        )
        shapes = jax.eval_shape(
            lambda: self._inverted(structure, averages.current, jnp.ones_like(averages.weight))
        )
        inverses = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        zero = jnp.zeros((), jnp.int32)
        findings = NotFinite.none([*factor_findings(averages.sums).parts, INVERSES])
        return KroneckerState(zero, averages, inverses, zero, jnp.asarray(False), findings)

    def solve(
        self,
        metric: MakeOperator,
        gradient: PyTree,
        damping: Float[Array, ""] | float,
        state: KroneckerState,
    ) -> Solution[KroneckerState]:
        structure = self.structure.restricted(gradient)
        mu = nonnegative(damping, state.averages.weight.dtype)

        def looked() -> tuple[Averages, NotFinite]:
            new = statistics(
                structure,
                metric(),
                couplings=self.couples,
                diagonal_outputs=self.diagonal_outputs,
            )
            return state.averages.updated(new, self.decay), factor_findings(new)

        def not_looked() -> tuple[Averages, NotFinite]:
            return state.averages, NotFinite.none(factor_findings(state.averages.sums).parts)

        averages, found = jax.lax.cond(state.step % self.statistics_period == 0, looked, not_looked)
        inverses, inverted, repairs = jax.lax.cond(
            (state.step % self.inverse_period == 0) | state.failed,
            lambda: inverted_or_repaired(
                lambda seen, more: self._inverted(structure, seen, more),
                averages.current,
                mu,
                state.inverses,
            ),
            lambda: (state.inverses, jnp.ones((), bool), state.repairs),
        )
        direction = self._direction(structure, inverses, gradient)
        flat, _ = ravel_pytree(direction)
        residual = jnp.where(inverted, 0.0, jnp.nan)
        info = solve_info(flat, residual, condition=inverses.condition, fallbacks=repairs)
        failed = ~(jnp.isfinite(jnp.sum(flat)) & inverted)
        findings = joined([found, NotFinite.of([INVERSES], [~inverted])])
        return Solution(
            direction,
            KroneckerState(state.step + 1, averages, inverses, repairs, failed, findings),
            info,
        )

    def _inverted(
        self, structure: Structure, statistics: Statistics, damping: Float[Array, ""]
    ) -> Inverses:
        bounds = [self._condition(factors, damping) for factors in statistics.layers.values()]
        return Inverses(
            self.invert(structure, statistics, damping),
            inverse_root(statistics.dense, damping, FullRank()).gram(),
            jax.tree.map(lambda leaf: 1.0 / (leaf + damping), statistics.diagonal),
            reduce(jnp.maximum, bounds, jnp.ones_like(damping)),
        )

    def _condition(self, factors: Factors, damping: Float[Array, ""]) -> Float[Array, ""]:
        """Of (A + a I) (x) (G + g I): the traces bound the largest eigenvalues."""
        bound = jnp.ones_like(damping)
        for factor, added in zip(factors, self.factor_damping.split(factors, damping), strict=True):
            bound *= 1.0 + mean_eigenvalue(factor) * factor.shape[0] / added
        return bound

    def _direction(self, structure: Structure, inverses: Inverses, gradient: PyTree) -> PyTree:
        leaves = by_path(gradient)
        matrices = {layer.weight: layer.matrix(leaves) for layer in structure.layers}
        solved = self.multiply(structure, inverses.layers, matrices)
        found: dict[str, Array] = {}
        for layer in structure.layers:
            found |= layer.leaves(solved[layer.weight])
        if structure.dense:
            flat, unravel = ravel_pytree(part(gradient, structure.dense))
            product = inverses.dense.mv(flat[:, None])[:, 0]
            found |= by_path(unravel(product.astype(flat.dtype)))
        for path, inverse in inverses.diagonal.items():
            found[path] = inverse * leaves[path]
        found = {path: leaf.astype(leaves[path].dtype) for path, leaf in found.items()}
        return with_leaves(gradient, found)


def damped_factors(
    statistics: Statistics, factor_damping: AbstractFactorDamping, damping: Float[Array, ""]
) -> list[DampedFactor]:
    """The factors of all layers, A and G in turn, each with its damping."""
    return [
        (factor, added)
        for factors in statistics.layers.values()
        for factor, added in zip(factors, factor_damping.split(factors, damping), strict=True)
    ]


def sandwich(
    left: AbstractMatrix, matrix: Float[Array, "n m"], right: AbstractMatrix
) -> Float[Array, "n m"]:
    """L X R for symmetric L and R: (L (x) R) vec(X)."""
    return right.mv(left.mv(matrix).T).T
