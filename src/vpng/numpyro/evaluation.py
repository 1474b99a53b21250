"""A NumPyro loss as the adaptive rule wants it: by particle, and its gradient by halves."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpyro.infer import Trace_ELBO, TraceEnum_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from numpyro.infer.elbo import ELBO

from vpng.adaptive import Evaluation, Particles
from vpng.checks import random_key
from vpng.numpyro.particles import over_all, with_either_map
from vpng.numpyro.problem import Call, TracedProblem
from vpng.numpyro_names import names_in_order
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
    def groups(
        cls,
        rng_key: PRNGKeyArray,
        shape: tuple[int, int],
        subsamples: tuple[dict[str, Array], ...],
    ) -> "Draw":
        """Groups of them, `shape` has how many of how many, with subsamples of each if given."""
        keys = jax.random.split(random_key("rng_key", rng_key), shape)
        repeat = lambda *leaves: jnp.repeat(jnp.stack(leaves)[:, None], shape[1], axis=1)
        return cls(keys, jax.tree.map(repeat, *subsamples) if subsamples else {})

    def joined(self) -> "Draw":
        """All groups as one."""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self)


class Losses(NamedTuple):
    """The loss of a problem with fixed random numbers, per datum.

    Attributes:
        loss: NumPyro's objective.
        problem: the problem.
        call: what model and guide are called with.
        draws: one for each evaluation of `loss`, in two halves, shape [2, K / 2], or in one group,
            shape [1, K].
        forward_mode: differentiate forwards.
        with_scores: whether gradients come with the score of q.
    """

    loss: ELBO
    problem: TracedProblem
    call: Call
    draws: Draw
    forward_mode: bool
    with_scores: bool

    @classmethod
    def drawn(
        cls,
        rng_key: PRNGKeyArray,
        loss: ELBO,
        problem: TracedProblem,
        call: Call,
        *subsamples: dict[str, Array],
        halves: bool = True,
        forward_mode: bool = False,
        with_scores: bool = False,
    ) -> "Losses":
        """With the particles of `loss`: for `halves` at least two and an even number, else exactly.

        An objective that is no mean over particles is evaluated once for each group. Every particle
        has a minibatch of its own, unless `subsamples` has one for each group.
        """
        groups, loss = 2 if halves else 1, with_either_map(loss)
        if not _is_mean(loss):
            draws = Draw.groups(rng_key, (groups, 1), subsamples)
            return cls(loss, problem, call, draws, forward_mode, False)
        alone = copy.copy(loss)
        alone.num_particles = 1
        draws = Draw.groups(rng_key, (groups, max(1, -(-loss.num_particles // groups))), subsamples)
        with_scores = with_scores and _contains_score(loss, problem) and not call.mutable
        return cls(alone, problem, call, draws, forward_mode, with_scores)

    @classmethod
    def repeated(
        cls, rng_key: PRNGKeyArray, loss: ELBO, problem: TracedProblem, call: Call, count: int
    ) -> "Losses":
        """`count` evaluations of `loss` at the minibatch of `call`.

        Each is of one particle where the objective is a mean over particles, else of all its own.
        """
        alone = copy.copy(with_either_map(loss))
        if _is_mean(loss) or type(loss) is TraceEnum_ELBO:
            alone.num_particles = 1
        draws = Draw.groups(rng_key, (1, count), (call.subsamples,))
        return cls(alone, problem, call, draws, False, False)

    def at(self, parameters: Parameters) -> Float[Array, " K"]:
        """The losses at a point."""
        if callable(self.loss.vectorize_particles):
            # By groups, as gradients are: `pmap` wants the same devices throughout a program.
            return jax.vmap(lambda draws: self._each(parameters, draws)[0])(self.draws).ravel()
        return self._each(parameters, self.draws.joined())[0]

    def mean(self, parameters: Parameters) -> tuple[Float[Array, ""], Parameters]:
        """The mean loss and its gradient."""
        return self.mean_and_written(parameters)[:2]

    def with_gradient(self, parameters: Parameters) -> tuple[Float[Array, " K"], Parameters]:
        """The losses, and the gradient of their mean."""
        return self._differentiated(parameters, self.draws.joined())[:2]

    def mean_and_written(
        self, parameters: Parameters
    ) -> tuple[Float[Array, ""], Parameters, PyTree]:
        """The mean loss, its gradient, and the mutable state that the model wrote."""
        losses, gradient, written = self._differentiated(parameters, self.draws.joined())
        return jnp.mean(losses), gradient, written

    def halves(self, parameters: Parameters) -> Evaluation:
        """Losses, and gradients and scores by halves."""
        half = lambda draws: self._differentiated(parameters, draws)
        losses, gradients, written = jax.vmap(half)(self.draws)
        scores = jax.vmap(lambda draws: self._mean_score(parameters, draws))
        return Evaluation(
            losses.ravel(),
            gradients,
            scores(self.draws) if self.with_scores else None,
            written=jax.tree.map(lambda leaf: leaf[0], written),
        )

    def by_particle(
        self, active: PyTree, embed: Callable[[PyTree], Parameters]
    ) -> Particles | None:
        """Losses, gradients and scores of every particle in `active` parameters."""
        all_at_once = self.loss.vectorize_particles is True
        if not self.with_scores or self.forward_mode or not all_at_once:
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
        with names_in_order():
            if not self.call.mutable:
                return jnp.asarray(self.loss.loss(*arguments, **self.call.kwargs)), None
            result: Any = self.loss.loss_with_mutable_state(*arguments, **self.call.kwargs)
        return result["loss"], result["mutable_state"]

    def _called(self, draw: Draw) -> Call:
        return self.call._replace(subsamples=draw.subsamples)

    def _each(self, parameters: Parameters, draws: Draw) -> tuple[Array, PyTree]:
        losses, mutable = self._mapped(partial(self._one, self._values(parameters)), draws)
        return losses / self.problem.num_data, jax.tree.map(lambda leaf: leaf[0], mutable)

    def _mapped(self, one: Callable[[Draw], PyTree], draws: Draw) -> PyTree:
        """What `one` makes of every draw, as the loss maps over its particles."""
        how = self.loss.vectorize_particles
        if how is True or (callable(how) and not _is_mean(self.loss)):
            # A map of one's own is for particles; it is inside such a loss already.
            return jax.vmap(one)(draws)
        mapped = self.loss.vectorize_particles_fn
        if draws.subsamples:
            return over_all(one, draws, mapped)
        return over_all(lambda key: one(Draw(key, {})), draws.key, mapped)

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
    # Where all latents can be reparameterised the two have the same gradient.
    plain = type(loss) is Trace_ELBO or problem.reparameterised_guide
    return plain and type(loss) in (Trace_ELBO, TraceGraph_ELBO) and problem.held_density


def _is_mean(loss: ELBO) -> bool:
    return type(loss) in (Trace_ELBO, TraceMeanField_ELBO, TraceGraph_ELBO)
