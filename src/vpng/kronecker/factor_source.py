"""Which Kronecker factors give a basis, and where they come from."""

from abc import abstractmethod

import equinox as eqx
from jaxtyping import PRNGKeyArray, PyTree

from vpng.fisher import AbstractMetric, Predictive, Probed
from vpng.kronecker.factor_statistics import Factors, statistics
from vpng.kronecker.structure import Layer, Structure, by_path
from vpng.problem import AbstractProblem, Parameters


class AbstractSides(eqx.Module):
    """Which factors give a basis."""

    @abstractmethod
    def outputs(self, structure: Structure, layer: Layer) -> bool:
        """Whether the outputs of `layer` are turned too."""


class Inputs(AbstractSides):
    """The inputs of every layer alone."""

    def outputs(self, structure: Structure, layer: Layer) -> bool:
        return False


class InputsAndOutputs(AbstractSides):
    """Inputs and outputs, but for the last layers' outputs: their factor is nearly diagonal."""

    def outputs(self, structure: Structure, layer: Layer) -> bool:
        return layer.weight not in structure.outputs


class AbstractSource(eqx.Module):
    """Where the factors come from."""

    @abstractmethod
    def factors(
        self,
        problem: AbstractProblem,
        structure: Structure,
        params: Parameters,
        gradient: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
    ) -> dict[str, Factors]:
        """A and G of every layer."""


class FisherFactors(AbstractSource):
    """The Kronecker factors of a metric.

    Attributes:
        metric: by default the predictive Fisher from one probe on at most 256 data.
    """

    metric: AbstractMetric = Predictive(Probed(num_probes=1), num_particles=1, max_data=256)

    def factors(
        self,
        problem: AbstractProblem,
        structure: Structure,
        params: Parameters,
        gradient: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
    ) -> dict[str, Factors]:
        return statistics(structure, self.metric.operator(problem, params, batch, rng_key)).layers


class GradientFactors(AbstractSource):
    """V V^T and V^T V of the gradient V itself, as in SOAP: no metric, for comparison."""

    def factors(
        self,
        problem: AbstractProblem,
        structure: Structure,
        params: Parameters,
        gradient: Parameters,
        batch: PyTree,
        rng_key: PRNGKeyArray,
    ) -> dict[str, Factors]:
        leaves = by_path(gradient)
        matrices = {layer.weight: layer.matrix(leaves) for layer in structure.layers}
        return {name: Factors(v @ v.T, v.T @ v) for name, v in matrices.items()}
