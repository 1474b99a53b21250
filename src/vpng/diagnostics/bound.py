"""The ELBO at a point: a problem's own, or that of a NumPyro objective."""

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.objective import ELBO, Estimate, estimate_of
from vpng.problem import AbstractProblem, Parameters

if TYPE_CHECKING:
    from numpyro.infer import elbo

    from vpng.numpyro.evaluation import Losses
    from vpng.numpyro.problem import Call, TracedProblem


class Bound(Protocol):
    """An ELBO, estimated with any number of particles."""

    @abstractmethod
    def loss(
        self, rng_key: PRNGKeyArray, parameters: Parameters, num_particles: int
    ) -> Float[Array, ""]:
        """-ELBO per datum."""

    @abstractmethod
    def estimate_and_gradient(
        self, rng_key: PRNGKeyArray, parameters: Parameters, num_particles: int
    ) -> tuple[Estimate, Parameters]:
        """The loss with its standard error, and its gradient."""


class OwnBound(NamedTuple):
    """The ELBO as the problem has it.

    Attributes:
        problem: the problem.
        batch: its data.
    """

    problem: AbstractProblem
    batch: PyTree

    def loss(
        self, rng_key: PRNGKeyArray, parameters: Parameters, num_particles: int
    ) -> Float[Array, ""]:
        return ELBO(num_particles).estimate(rng_key, self.problem, parameters, self.batch).loss

    def estimate_and_gradient(
        self, rng_key: PRNGKeyArray, parameters: Parameters, num_particles: int
    ) -> tuple[Estimate, Parameters]:
        objective = ELBO(num_particles)
        return objective.estimate_and_gradient(rng_key, self.problem, parameters, self.batch)


class NumPyroBound(NamedTuple):
    """The ELBO by an objective of NumPyro, which may sum over latents or use scores.

    Attributes:
        objective: the objective.
        problem: the traced model and guide.
        call: what they are called with.
    """

    objective: "elbo.ELBO"
    problem: "TracedProblem"
    call: "Call"

    def loss(
        self, rng_key: PRNGKeyArray, parameters: Parameters, num_particles: int
    ) -> Float[Array, ""]:
        return jnp.mean(self._losses(rng_key, num_particles).at(parameters))

    def estimate_and_gradient(
        self, rng_key: PRNGKeyArray, parameters: Parameters, num_particles: int
    ) -> tuple[Estimate, Parameters]:
        losses, gradient = self._losses(rng_key, num_particles).with_gradient(parameters)
        return estimate_of(losses), gradient

    def _losses(self, rng_key: PRNGKeyArray, count: int) -> "Losses":
        from vpng.numpyro.evaluation import Losses

        return Losses.repeated(rng_key, self.objective, self.problem, self.call, count)
