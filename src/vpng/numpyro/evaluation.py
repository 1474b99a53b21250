"""A NumPyro loss as the adaptive rule wants it: by particle, and its gradient by halves."""

import copy
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.elbo import ELBO

from vpng.adaptive import Evaluation, Particles
from vpng.checks import random_key
from vpng.numpyro.problem import Call, TracedProblem
from vpng.problem import Parameters


class Draw(NamedTuple):
    """What one evaluation of the loss draws from.

    Attributes:
        key: of the latents, and of the plates that are not given.
        subsamples: the indices of subsampled plates.
    """

    key: PRNGKeyArray
    subsamples: dict[str, Array]

    @classmethod
    def halves(
        cls, rng_key: PRNGKeyArray, count: int, subsamples: tuple[dict[str, Array], ...]
    ) -> "Draw":
        """Two times `count` of them, with the subsamples of both halves if there are any."""
        keys = jax.random.split(random_key("rng_key", rng_key), (2, count))
        repeat = lambda *leaves: jnp.repeat(jnp.stack(leaves)[:, None], count, axis=1)
        return cls(keys, jax.tree.map(repeat, *subsamples) if subsamples else {})

    def joined(self) -> "Draw":
        """Both halves as one."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self)


class Losses(NamedTuple):
    """The loss of a problem with fixed random numbers, per datum.

    Attributes:
        loss: NumPyro's objective.
        problem: the problem.
        call: what model and guide are called with.
        draws: one for each evaluation of `loss`, in two halves: shape [2, K / 2].
        forward_mode: differentiate forwards.
        with_scores: whether gradients come with the score of q.
        written: the mutable state after every evaluation with gradients is added here.
    """

    loss: ELBO
    problem: TracedProblem
    call: Call
    draws: Draw
    forward_mode: bool
    with_scores: bool
    written: list[PyTree]

    @classmethod
    def drawn(
        cls,
        rng_key: PRNGKeyArray,
        loss: ELBO,
        problem: TracedProblem,
        call: Call,
        *subsamples: dict[str, Array],
        forward_mode: bool = False,
        with_scores: bool = False,
    ) -> "Losses":
        """With the particles of `loss`, at least two and an even number of them.

        An objective that is no mean over particles is evaluated twice. Every particle has a
        minibatch of its own, unless `subsamples` has one for each half.
        """
        if not _is_mean(loss):
            draws = Draw.halves(rng_key, 1, subsamples)
            return cls(loss, problem, call, draws, forward_mode, False, [])
        alone = copy.copy(loss)
        alone.num_particles = 1
        draws = Draw.halves(rng_key, max(1, -(-loss.num_particles // 2)), subsamples)
        with_scores = with_scores and _contains_score(loss, problem) and not call.mutable
        return cls(alone, problem, call, draws, forward_mode, with_scores, [])

    def at(self, parameters: Parameters) -> Float[Array, " K"]:
        """The losses at a point."""
        return self._each(parameters, self.draws.joined())[0]

    def mean(self, parameters: Parameters) -> tuple[Float[Array, ""], Parameters]:
        """The mean loss and its gradient."""
        losses, gradient, mutable = self._differentiated(parameters, self.draws.joined())
        self.written.append(mutable)
        return jnp.mean(losses), gradient

    def halves(self, parameters: Parameters) -> Evaluation:
        """Losses, and gradients and scores by halves."""
        half = lambda draws: self._differentiated(parameters, draws)
        losses, gradients, mutable = jax.vmap(half)(self.draws)
        self.written.append(jax.tree.map(lambda leaf: leaf[0], mutable))
        scores = jax.vmap(lambda draws: self._mean_score(parameters, draws))
        return Evaluation(
            losses.ravel(), gradients, scores(self.draws) if self.with_scores else None
        )

    def by_particle(
        self, active: PyTree, embed: Callable[[PyTree], Parameters]
    ) -> Particles | None:
        """Losses, gradients and scores of every particle in `active` parameters."""
        if not self.with_scores or self.forward_mode or self.loss.vectorize_particles is False:
            return None

        def one(draw: Draw) -> tuple[Array, PyTree, PyTree]:
            loss = lambda active: self._one(self._values(embed(active)), draw)[0]
            value, gradient = jax.value_and_grad(loss)(active)
            return value, gradient, self._score(active, lambda a: embed(a).variational, draw)

        losses, gradients, scores = jax.vmap(one)(self.draws.joined())
        per_datum = lambda leaf: leaf / self.problem.num_data
        return Particles(per_datum(losses), jax.tree.map(per_datum, gradients), scores)

    def _differentiated(
        self, parameters: Parameters, draws: Draw
    ) -> tuple[Array, Parameters, PyTree]:
        def mean(parameters: Parameters) -> tuple[Array, tuple[Array, PyTree]]:
            losses, mutable = self._each(parameters, draws)
            return jnp.mean(losses), (losses, mutable)

        differentiate = jax.jacfwd if self.forward_mode else jax.grad
        gradient, (losses, mutable) = differentiate(mean, has_aux=True)(parameters)
        return losses, gradient, mutable

    def _values(self, parameters: Parameters) -> dict[str, PyTree]:
        return self.problem.constrained({**parameters.variational, **parameters.model})

    def _one(self, values: dict[str, PyTree], draw: Draw) -> tuple[Array, PyTree]:
        given = {**values, **self._called(draw).fixed}
        arguments = (draw.key, given, self.problem.model, self.problem.guide, *self.call.args)
        if not self.call.mutable:
            return self.loss.loss(*arguments, **self.call.kwargs), None
        result = self.loss.loss_with_mutable_state(*arguments, **self.call.kwargs)
        return result["loss"], result["mutable_state"]

    def _called(self, draw: Draw) -> Call:
        return self.call._replace(subsamples=draw.subsamples)

    def _each(self, parameters: Parameters, draws: Draw) -> tuple[Array, PyTree]:
        one = partial(self._one, self._values(parameters))
        one_by_one = self.loss.vectorize_particles is False
        losses, mutable = jax.lax.map(one, draws) if one_by_one else jax.vmap(one)(draws)
        return losses / self.problem.num_data, jax.tree.map(lambda leaf: leaf[0], mutable)

    def _score(self, active: PyTree, embed: Callable[[PyTree], PyTree], draw: Draw) -> PyTree:
        # Trace_ELBO splits its key into one for the model and one for the guide.
        _, guide_key = jax.random.split(draw.key)
        return self.problem.score(active, embed, guide_key, self._called(draw))

    def _mean_score(self, parameters: Parameters, draws: Draw) -> Parameters:
        variational, model = parameters
        each = jax.vmap(lambda draw: self._score(variational, lambda lam: lam, draw))(draws)
        mean = lambda leaf: jnp.mean(leaf, axis=0) / self.problem.num_data
        return Parameters(jax.tree.map(mean, each), jax.tree.map(jnp.zeros_like, model))


def _contains_score(loss: ELBO, problem: TracedProblem) -> bool:
    """Whether the gradient of `loss` contains the score of q, which may then be subtracted."""
    plain = type(loss) is Trace_ELBO and not loss.multi_sample_guide
    return plain and problem.held_density


def _is_mean(loss: ELBO) -> bool:
    return type(loss) in (Trace_ELBO, TraceMeanField_ELBO)
