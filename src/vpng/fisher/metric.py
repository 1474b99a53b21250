"""Which geometry the gradient is measured in: predictive Fisher, variational one, or sums."""

from abc import abstractmethod
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from vpng.checks import of_kind, positive_integer
from vpng.distributed.layout import by_rows
from vpng.fisher.entropy import entropy_rows
from vpng.fisher.estimator import AbstractEstimator, Exact, weighted
from vpng.fisher.families import Whitened
from vpng.fisher.operator import Bottleneck, ByDatum, FisherOperator
from vpng.problem import AbstractProblem, Parameters, Site


class AbstractMetric(eqx.Module):
    """A positive semidefinite matrix for every point of a problem's parameter space.

    Metrics add: `Predictive() + Variational()` is the metric of the sum of both Fishers.
    """

    @abstractmethod
    def operator(
        self, problem: AbstractProblem, parameters: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> FisherOperator:
        """The metric's matrix, per datum, as a lazy operator on `Parameters`."""

    def __add__(self, other: "AbstractMetric") -> "Sum":
        return Sum((*_terms(self), *_terms(other)))


class Predictive(AbstractMetric):
    """F_r, the Fisher of the reparameterised predictive distribution, eq. (r-fisher-info), over n.

    F_r / n = E_x E_eps E_{x' ~ p(.|z)} [s s^T] with the score
    s = d/d eta log p(x' | z = g(x, eps; lambda); theta).

    Attributes:
        estimator: how the inner expectation over x' is taken.
        num_particles: draws of eps.
        max_data: at most so many data of the batch are used, None for all.
    """

    stream: ClassVar[int] = 0

    estimator: AbstractEstimator = Exact()
    num_particles: int = eqx.field(default=10, static=True)
    max_data: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        positive_integer("num_particles", self.num_particles)
        of_kind("estimator", self.estimator, AbstractEstimator, "one such as Exact() or Sampled()")
        if self.max_data is not None:
            positive_integer("max_data", self.max_data)

    def operator(
        self, problem: AbstractProblem, parameters: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> FisherOperator:
        def middle(parameters: Parameters, noise: PyTree, batch: PyTree) -> PyTree:
            return problem.latent_for_sites(parameters, noise, batch), parameters.model

        def sites(middle: PyTree, batch: PyTree) -> list[Site]:
            latent, model = middle
            return problem.likelihood_sites(model, latent, batch)

        return _operator(self, problem, parameters, batch, rng_key, middle, sites)


class Variational(AbstractMetric):
    """F_q, the Fisher of the approximation, eq. (q-fisher), per datum; zero for theta.

    Attributes:
        estimator: how the expectation over z ~ q is taken.
        num_particles: draws of eps, for approximations in which one latent depends on another or
            that are sampled; the exact F_q of a plain family needs one.
        max_data: at most so many data of the batch are used, None for all.
    """

    stream: ClassVar[int] = 1

    estimator: AbstractEstimator = Exact()
    num_particles: int = eqx.field(default=1, static=True)
    max_data: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        positive_integer("num_particles", self.num_particles)
        of_kind("estimator", self.estimator, AbstractEstimator, "one such as Exact() or Sampled()")
        if self.max_data is not None:
            positive_integer("max_data", self.max_data)

    def operator(
        self, problem: AbstractProblem, parameters: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> FisherOperator:
        def middle(parameters: Parameters, noise: PyTree, batch: PyTree) -> PyTree:
            frozen = jax.lax.stop_gradient(parameters.variational)
            return parameters.variational, problem.latent(frozen, noise, batch)

        def sites(middle: PyTree, batch: PyTree) -> list[Site]:
            variational, latent = middle
            return problem.approximation_sites(variational, latent, batch)

        return _operator(self, problem, parameters, batch, rng_key, middle, sites)


class BayesianNetwork(AbstractMetric):
    """The Fisher of a Bayesian network with several stochastic layers.

    Every conditional distribution, observed or latent, contributes its information through its
    parents; a latent's joint with its own motion, so that latents are coupled with what they depend
    on. Equal to `Predictive` where the latents have no parents, as in the paper.

    Attributes:
        estimator: how the expectation over each site's own draw is taken.
        num_particles: draws of eps.
    """

    stream: ClassVar[int] = 2

    estimator: AbstractEstimator = Exact()
    num_particles: int = eqx.field(default=10, static=True)
    max_data: None = eqx.field(default=None, static=True, init=False)

    def __check_init__(self) -> None:
        positive_integer("num_particles", self.num_particles)
        of_kind("estimator", self.estimator, AbstractEstimator, "one such as Exact() or Sampled()")

    def operator(
        self, problem: AbstractProblem, parameters: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> FisherOperator:
        def middle(parameters: Parameters, noise: PyTree, batch: PyTree) -> PyTree:
            return problem.latent_for_sites(parameters, noise, batch), parameters.model

        def sites(middle: PyTree, batch: PyTree) -> list[Site]:
            latent, model = middle
            observed = problem.likelihood_sites(model, latent, batch)
            return observed + _prior_sites(problem, model, latent, batch, roots=False)

        return _operator(self, problem, parameters, batch, rng_key, middle, sites)


class Divergence(AbstractMetric):
    """The curvature of KL(q || p) itself, which the other metrics leave to the damping.

    The information that the priors of latents without parents hold about those latents, and the
    curvature of the negative entropy of q, `vpng.fisher.entropy`.

    Attributes:
        estimator: how the expectation over each prior is taken.
        num_particles: draws of eps.
    """

    stream: ClassVar[int] = 3

    estimator: AbstractEstimator = Exact()
    num_particles: int = eqx.field(default=10, static=True)
    max_data: None = eqx.field(default=None, static=True, init=False)

    def __check_init__(self) -> None:
        positive_integer("num_particles", self.num_particles)
        of_kind("estimator", self.estimator, AbstractEstimator, "one such as Exact() or Sampled()")

    def operator(
        self, problem: AbstractProblem, parameters: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> FisherOperator:
        def middle(parameters: Parameters, noise: PyTree, batch: PyTree) -> PyTree:
            model = jax.lax.stop_gradient(parameters.model)
            return problem.latent_for_sites(parameters, noise, batch), model

        def sites(middle: PyTree, batch: PyTree) -> list[Site]:
            latent, model = middle
            return _prior_sites(problem, model, latent, batch, roots=True)

        prior = _operator(self, problem, parameters, batch, rng_key, middle, sites)
        noise = problem.noise(rng_key, batch)

        def negative_entropy(parameters: Parameters) -> Array:
            frozen = jax.lax.stop_gradient(parameters.variational)
            latent = problem.latent(frozen, noise, batch)
            pieces = []
            for site in problem.approximation_sites(parameters.variational, latent, batch):
                rows = entropy_rows(site.distribution, site.value)
                if rows is not None:
                    pieces.append(weighted(rows, site).ravel())
            return jnp.concatenate(pieces) if pieces else jnp.zeros(0)

        return prior + FisherOperator(parameters, negative_entropy)


def _prior_sites(
    problem: AbstractProblem, model: PyTree, latent: PyTree, batch: PyTree, *, roots: bool
) -> list[Site]:
    sites = problem.prior_sites(model, latent, batch)
    kept = problem.roots(model, latent, batch)
    return [site for site, root in zip(sites, kept, strict=True) if root is roots]


class Sum(AbstractMetric):
    """The sum of several metrics, those of different kinds at the same latents.

    What these share is computed once. Each kind draws its samples and signs from a `stream` of its
    own, so that the rows of different terms are independent given the latents. A second term of
    one kind has latents of its own.
    """

    terms: tuple[AbstractMetric, ...]

    def operator(
        self, problem: AbstractProblem, parameters: Parameters, batch: PyTree, rng_key: PRNGKeyArray
    ) -> FisherOperator:
        streams = [getattr(term, "stream", type(term)) for term in self.terms]
        operators = []
        for place, term in enumerate(self.terms):
            # Terms of one kind would draw the same signs and samples, and no longer be independent.
            before = streams[:place].count(streams[place])
            key = jax.random.fold_in(rng_key, before) if before else rng_key
            operators.append(term.operator(problem, parameters, batch, key))
        first, *rest = operators
        return sum(rest, start=first)


def _terms(metric: AbstractMetric) -> tuple[AbstractMetric, ...]:
    return metric.terms if isinstance(metric, Sum) else (metric,)


def _operator(
    metric: Predictive | Variational | BayesianNetwork | Divergence,
    problem: AbstractProblem,
    parameters: Parameters,
    batch: PyTree,
    rng_key: PRNGKeyArray,
    middle,
    sites,
) -> FisherOperator:
    """The operator whose rows are `metric.estimator`'s, over particles, sites and data."""
    estimator, num_particles = metric.estimator, metric.num_particles
    if metric.max_data is not None:
        batch = by_rows(problem.first_data(batch, metric.max_data))
    noise_key, draw_key = jax.random.split(rng_key)
    draw_key = jax.random.fold_in(draw_key, metric.stream)
    noise = jax.vmap(problem.noise, in_axes=(0, None))(
        jax.random.split(noise_key, num_particles), batch
    )

    def draw(key: PRNGKeyArray, noise: PyTree) -> tuple[PyTree, list[PyTree]]:
        frozen = jax.lax.stop_gradient(middle(parameters, noise, batch))
        draws = [
            estimator.draw(jax.random.fold_in(key, i), site)
            for i, site in enumerate(sites(frozen, batch))
        ]
        return frozen, draws

    here, draws = jax.vmap(draw)(jax.random.split(draw_key, num_particles), noise)

    def from_middle(middle: PyTree, draws: list[PyTree], batch: PyTree) -> Array:
        rows = [estimator.rows(s, d) for s, d in zip(sites(middle, batch), draws, strict=True)]
        size = problem.batch_size(batch) if problem.local else 1
        if not rows:
            return jnp.zeros((size, 0) if problem.local else (0,))
        if not problem.local:
            return jnp.concatenate([row.ravel() for row in rows])
        return jnp.concatenate([row.reshape(size, -1) for row in rows], axis=1)

    def in_factors(middle: PyTree, draws: list[PyTree]) -> Whitened:
        pairs = zip(sites(middle, batch), draws, strict=True)
        every = [estimator.in_factors(site, draw) for site, draw in pairs]
        if not every:
            return Whitened(jnp.zeros(0), jnp.zeros(0))
        full = lambda part: jnp.broadcast_to(part.weights, part.coordinates.shape).ravel()
        return Whitened(
            jnp.concatenate([full(part) for part in every]) / jnp.sqrt(num_particles),
            jnp.concatenate([part.coordinates.ravel() for part in every]),
        )

    def combine(rows: Array) -> Array:
        rows = rows / jnp.sqrt(num_particles)
        return jnp.sum(rows, axis=0) if estimator.pool_particles else rows

    def row_function(parameters: Parameters) -> Array:
        def one(noise: PyTree, draws: list[PyTree]) -> Array:
            return from_middle(middle(parameters, noise, batch), draws, batch)

        return combine(jax.vmap(one)(noise, draws))

    if not problem.local:
        bottleneck = None
        if not estimator.pool_particles:
            bottleneck = Bottleneck(
                here,
                inner=lambda parameters: jax.vmap(lambda n: middle(parameters, n, batch))(noise),
                outer=in_factors,
                draws=draws,
            )
        return FisherOperator(
            parameters, row_function, bottleneck=bottleneck, random_signs=estimator.random_signs
        )

    size = problem.batch_size(batch)

    def datum_rows(parameters: Parameters, inputs: PyTree) -> Array:
        noise, draws, datum = inputs
        alone = jax.tree.map(lambda leaf: leaf[None], datum)

        def one(noise: PyTree, draws: list[PyTree]) -> Array:
            noise, draws = jax.tree.map(lambda leaf: leaf[None], (noise, draws))
            return from_middle(middle(parameters, noise, alone), draws, alone)

        # Alone, a datum weighs 1; in its batch 1/B.
        return combine(jax.vmap(one)(noise, draws)) / jnp.sqrt(size)

    data_first = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0), (noise, draws))
    return FisherOperator(
        parameters,
        row_function,
        by_datum=ByDatum(datum_rows, (*data_first, batch)),
        random_signs=estimator.random_signs,
    )
