"""A NumPyro loss as the adaptive rule wants it: by particle, and its gradient by halves."""

import copy
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.elbo import ELBO

from vpng.adaptive import Evaluation
from vpng.numpyro.problem import Call, TracedProblem
from vpng.problem import Parameters


class Losses(NamedTuple):
    """The loss of a problem with fixed random numbers, per datum.

    Attributes:
        loss: NumPyro's objective.
        problem: the problem.
        call: what model and guide are called with.
        keys: one for each evaluation of `loss`, in two halves: shape [2, K / 2].
        forward_mode: differentiate forwards.
    """

    loss: ELBO
    problem: TracedProblem
    call: Call
    keys: PRNGKeyArray
    forward_mode: bool

    @classmethod
    def drawn(
        cls,
        rng_key: PRNGKeyArray,
        loss: ELBO,
        problem: TracedProblem,
        call: Call,
        *,
        forward_mode: bool = False,
    ) -> "Losses":
        """With the particles of `loss`, at least two and an even number of them.

        An objective that is no mean over particles is evaluated twice.
        """
        if not _is_mean(loss):
            return cls(loss, problem, call, jax.random.split(rng_key, (2, 1)), forward_mode)
        alone = copy.copy(loss)
        alone.num_particles = 1
        half = max(1, -(-loss.num_particles // 2))
        return cls(alone, problem, call, jax.random.split(rng_key, (2, half)), forward_mode)

    def at(self, parameters: Parameters) -> Float[Array, " K"]:
        """The losses at a point."""
        return jax.vmap(lambda keys: self._half(parameters, keys)[0])(self.keys).ravel()

    def evaluate(self, parameters: Parameters, *, scores: bool) -> tuple[Evaluation, PyTree]:
        """Losses and gradients at a point, and the mutable state after it."""

        def half(keys: PRNGKeyArray) -> tuple[Array, Parameters, PyTree]:
            def mean(parameters: Parameters) -> tuple[Array, tuple[Array, PyTree]]:
                losses, mutable = self._half(parameters, keys)
                return jnp.mean(losses), (losses, mutable)

            if self.forward_mode:
                gradient, (losses, mutable) = jax.jacfwd(mean, has_aux=True)(parameters)
            else:
                gradient, (losses, mutable) = jax.grad(mean, has_aux=True)(parameters)
            return losses, gradient, mutable

        losses, gradients, mutable = jax.vmap(half)(self.keys)
        first = jax.tree.map(lambda leaf: leaf[0], mutable)
        means = jax.vmap(lambda keys: self._score(parameters, keys))(self.keys) if scores else None
        return Evaluation(losses.ravel(), gradients, means), first

    def _half(self, parameters: Parameters, keys: PRNGKeyArray) -> tuple[Array, PyTree]:
        values = self.problem.constrained({**parameters.variational, **parameters.model})

        def one(key: PRNGKeyArray) -> tuple[Array, PyTree]:
            given = {**values, **self.call.fixed}
            arguments = (key, given, self.problem.model, self.problem.guide, *self.call.args)
            if not self.call.mutable:
                return self.loss.loss(*arguments, **self.call.kwargs), None
            result = self.loss.loss_with_mutable_state(*arguments, **self.call.kwargs)
            return result["loss"], result["mutable_state"]

        one_by_one = self.loss.vectorize_particles is False
        losses, mutable = jax.lax.map(one, keys) if one_by_one else jax.vmap(one)(keys)
        return losses / self.problem.num_data, jax.tree.map(lambda leaf: leaf[0], mutable)

    def _score(self, parameters: Parameters, keys: PRNGKeyArray) -> Parameters:
        def one(key: PRNGKeyArray) -> PyTree:
            # Trace_ELBO splits its key into one for the model and one for the guide.
            _, guide_key = jax.random.split(key)
            return self.problem.score(parameters.variational, guide_key, self.call)

        mean = lambda leaf: jnp.mean(leaf, axis=0) / self.problem.num_data
        variational = jax.tree.map(mean, jax.vmap(one)(keys))
        return Parameters(variational, jax.tree.map(jnp.zeros_like, parameters.model))


def takes_scores(loss: ELBO, problem: TracedProblem) -> bool:
    """Whether the gradient of `loss` contains the score of q, which may then be subtracted."""
    plain = type(loss) is Trace_ELBO and not loss.multi_sample_guide
    return plain and problem.held_density


def _is_mean(loss: ELBO) -> bool:
    return type(loss) in (Trace_ELBO, TraceMeanField_ELBO)
