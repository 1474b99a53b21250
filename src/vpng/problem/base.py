"""A model and an approximation written as four distributions."""

from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from vpng.checks import finite_array, numeric_array, single_or_double
from vpng.errors import InputError, expected
from vpng.problem.abstract import (
    AbstractProblem,
    Parameters,
    Site,
    distributions_of,
    is_distribution,
)


class Problem(AbstractProblem):
    """A model p(z) p(x | z; theta) with an approximation q(z | x; lambda), by its distributions.

    A subclass says four things, each as one NumPyro distribution or a pytree of them:
    `approximation`, `prior`, `likelihood` and the `observed` values. With *local* latents (one z
    per datum, amortised) every distribution has the data as its first batch dimension; with
    *global* latents (one z for all data) only the likelihood has.

    Everything else is derived and may be overridden: how noise is drawn (`noise`), the
    reparameterisation z = g(x, eps; lambda) (`latent`), and the divergence (`kl`).

    Attributes:
        num_data: number of data n in the whole set, of which a batch may be a part.
        local: whether each datum has its own latent variables.
    """

    num_data: eqx.AbstractVar[int]
    local: eqx.AbstractVar[bool]

    @abstractmethod
    def approximation(self, variational: PyTree, batch: PyTree) -> PyTree:
        """The distribution q(z | x; lambda)."""

    @abstractmethod
    def prior(self, model: PyTree, batch: PyTree) -> PyTree:
        """The distribution p(z), of the same tree structure as the approximation."""

    @abstractmethod
    def likelihood(self, model: PyTree, latent: PyTree, batch: PyTree) -> PyTree:
        """The distribution p(x | z; theta), the data along its first batch dimension."""

    @abstractmethod
    def observed(self, batch: PyTree) -> PyTree:
        """The values x, of the same tree structure as the likelihood."""

    def batch_size(self, batch: PyTree) -> int:
        """The number of data in `batch`."""
        return jax.tree.leaves(batch)[0].shape[0]

    def first_data(self, batch: PyTree, count: int) -> PyTree:
        """At most `count` data of `batch`; refused where its size does not go with its arrays."""
        if self.batch_size(batch) <= count:
            return batch
        few = jax.tree.map(lambda leaf: leaf[:count] if getattr(leaf, "ndim", 0) else leaf, batch)
        if self.batch_size(few) > count:
            raise expected("max_data", "None for a problem whose arguments are not its data", count)
        return few

    def reparameterised(self, variational: PyTree, batch: PyTree) -> bool:
        """Whether gradients flow from z to lambda."""
        return all(q.has_rsample for q in distributions_of(self.approximation(variational, batch)))

    def has_held_density(self) -> bool:
        """Always: the approximation is a distribution."""
        return True

    def sums_over_latents(self) -> bool:
        """Never: every latent is drawn."""
        return False

    def noise(self, rng_key: PRNGKeyArray, batch: PyTree) -> PyTree:
        """Draw eps ~ s(eps), free of parameters; for local latents the data come first.

        By default the noise *is* randomness: a key for the approximation's own sampler.
        """
        return jax.random.split(rng_key, self.batch_size(batch)) if self.local else rng_key

    def latent(self, variational: PyTree, noise: PyTree, batch: PyTree) -> PyTree:
        """The reparameterisation z = g(x, eps; lambda), eq. (repara)."""
        if not self.local:
            return drawn_from(self.approximation(variational, batch), noise)

        def draw_one(key: PRNGKeyArray, datum: PyTree) -> PyTree:
            alone = jax.tree.map(lambda leaf: leaf[None], datum)
            drawn = drawn_from(self.approximation(variational, alone), key)
            return jax.tree.map(lambda leaf: leaf[0], drawn)

        return jax.vmap(draw_one)(noise, batch)

    def latent_for_sites(self, parameters: Parameters, noise: PyTree, batch: PyTree) -> PyTree:
        """`latent`, with a draw of whatever else the conditional distributions depend on."""
        return self.latent(parameters.variational, noise, batch)

    def kl(self, parameters: Parameters, latent: PyTree, batch: PyTree) -> Float[Array, "..."]:
        """KL(q || p) of each datum (local) or of all (global): analytic where NumPyro knows it.

        Otherwise the single-draw estimate log q(z) - log p(z).
        """
        q = self.approximation(parameters.variational, batch)
        return self.divergence(q, self.prior(parameters.model, batch), latent, batch)

    def latent_and_log_ratio(
        self, parameters: Parameters, noise: PyTree, batch: PyTree
    ) -> tuple[PyTree, Float[Array, ""]]:
        """`latent` and log q(z) - log p(z) at it, over all latents of the batch."""
        latent = self.latent(parameters.variational, noise, batch)
        q = self.approximation(parameters.variational, batch)
        p = self.prior(parameters.model, batch)
        draws = jax.tree.structure(q, is_leaf=is_distribution).flatten_up_to(latent)
        pairs = zip(distributions_of(q), distributions_of(p), draws, strict=True)
        ratios = [jnp.sum(a.log_prob(z)) - jnp.sum(b.log_prob(z)) for a, b, z in pairs]
        return latent, sum(ratios[1:], start=ratios[0])

    def latent_and_kl(
        self, parameters: Parameters, noise: PyTree, batch: PyTree
    ) -> tuple[PyTree, Float[Array, "..."]]:
        """`latent` and `kl` together; override it where they share work, such as an encoder."""
        latent = self.latent(parameters.variational, noise, batch)
        return latent, self.kl(parameters, latent, batch)

    def divergence(
        self, q: PyTree, p: PyTree, latent: PyTree, batch: PyTree
    ) -> Float[Array, "..."]:
        """`kl` as a function of the two distributions."""
        structure = jax.tree.structure(q, is_leaf=is_distribution)
        if structure != jax.tree.structure(p, is_leaf=is_distribution):
            raise expected("prior", f"the approximation's structure {structure}", f"{p}")
        draws = structure.flatten_up_to(latent)
        terms = [
            self._divergence_of(a, b, z, batch)
            for a, b, z in zip(distributions_of(q), distributions_of(p), draws, strict=True)
        ]
        return sum(terms[1:], start=terms[0])

    def _divergence_of(
        self, q: dist.Distribution, p: dist.Distribution, z: Array, batch: PyTree
    ) -> Float[Array, "..."]:
        try:
            return self._per_unit(dist.kl_divergence(q, p), batch)
        except NotImplementedError:
            # Apart: the two may count different dimensions as events.
            log_q, log_p = (self._per_unit(jnp.asarray(d.log_prob(z)), batch) for d in (q, p))
            return log_q - log_p

    def likelihood_sites(self, model: PyTree, latent: PyTree, batch: PyTree) -> list[Site]:
        """The observed sites with their weight 1/B: the loss per datum is an average."""
        p = self.likelihood(model, latent, batch)
        values = jax.tree.structure(p, is_leaf=is_distribution).flatten_up_to(self.observed(batch))
        weight = 1.0 / self.batch_size(batch)
        paths = jax.tree_util.tree_leaves_with_path(p, is_leaf=is_distribution)
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        return [
            Site(likelihood, value, weight, name=name)
            for likelihood, value, name in zip(distributions_of(p), values, names, strict=True)
        ]

    def approximation_sites(self, variational: PyTree, latent: PyTree, batch: PyTree) -> list[Site]:
        """The latent sites under q with their weight: 1/B if local, 1/n if global."""
        q = self.approximation(variational, batch)
        draws = jax.tree.structure(q, is_leaf=is_distribution).flatten_up_to(latent)
        return [
            Site(approximation, jax.lax.stop_gradient(z), self.latent_weight(batch))
            for approximation, z in zip(distributions_of(q), draws, strict=True)
        ]

    def prior_sites(self, model: PyTree, latent: PyTree, batch: PyTree) -> list[Site]:
        """The latent sites under p with their weight: 1/B if local, 1/n if global."""
        p = self.prior(model, batch)
        draws = jax.tree.structure(p, is_leaf=is_distribution).flatten_up_to(latent)
        return [
            Site(prior, z, self.latent_weight(batch), moving=True)
            for prior, z in zip(distributions_of(p), draws, strict=True)
        ]

    def roots(self, model: PyTree, latent: PyTree, batch: PyTree) -> list[bool]:
        """Of each prior site, whether it has no parents: neither parameters nor latents."""

        def parameters_of_sites(model: PyTree, latent: PyTree) -> list[list[Array]]:
            sites = self.prior_sites(model, latent, batch)
            return [parameters_of(site.distribution, site.value) for site in sites]

        return [not any(used) for used in leaves_in_use(parameters_of_sites, model, latent)]

    def latent_weight(self, batch: PyTree) -> float:
        """The weight of a latent's KL in the loss per datum."""
        return 1.0 / (self.batch_size(batch) if self.local else self.num_data)

    def _per_unit(self, values: Array, batch: PyTree) -> Array:
        if not self.local:
            return jnp.sum(values)
        return values.reshape(self.batch_size(batch), -1).sum(axis=1)


def drawn_from(approximation: PyTree, rng_key: PRNGKeyArray) -> PyTree:
    """A draw from each distribution of a pytree, reparameterised where that is possible."""
    structure = jax.tree.structure(approximation, is_leaf=is_distribution)
    qs = distributions_of(approximation)
    keys = jax.random.split(rng_key, len(qs)) if len(qs) > 1 else [rng_key]
    draws = [
        q.rsample(key) if q.has_rsample else jax.lax.stop_gradient(q.sample(key))
        for q, key in zip(qs, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, draws)


def check_problem(problem: AbstractProblem, parameters: Parameters, batch: PyTree) -> None:
    """Refuse a problem whose parts do not fit each other, by their shapes alone.

    Raises:
        InputError: naming the part, what was expected of it and what came.
    """
    if not isinstance(parameters, Parameters):
        raise expected("params", "vpng.Parameters(variational, model)", type(parameters).__name__)
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        numeric_array("params" + jax.tree_util.keystr(path), leaf)
    single_or_double("params", parameters)
    for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
        finite_array("params" + jax.tree_util.keystr(path), leaf)

    batch_shapes: list[tuple[int, ...]] = []

    def predictive(parameters: Parameters, rng_key: PRNGKeyArray) -> tuple[list, Array]:
        noise = problem.noise(rng_key, batch)
        latent = problem.latent(parameters.variational, noise, batch)
        sites = problem.likelihood_sites(parameters.model, latent, batch)
        batch_shapes.extend(site.distribution.batch_shape for site in sites)
        log_probs = [site.distribution.log_prob(site.value) for site in sites]
        return log_probs, problem.kl(parameters, latent, batch)

    log_probs, divergence = _shapes_of(predictive, parameters, batch)
    size = problem.batch_size(batch)
    for position, (batch_shape, log_prob) in enumerate(zip(batch_shapes, log_probs, strict=True)):
        if not batch_shape or batch_shape[0] != size:
            raise expected(
                f"likelihood (site {position})",
                f"a batch shape with the {size} data along the first dimension",
                f"batch shape {batch_shape}; broadcast the parameters to the data and use "
                ".to_event() for the dimensions of one datum",
            )
        if log_prob.shape != batch_shape:
            raise expected(
                f"observed (site {position})",
                f"values whose log-density has the likelihood's batch shape {batch_shape}",
                f"shape {log_prob.shape}",
            )
    wanted = (size,) if problem.local else ()
    if divergence.shape not in (wanted, ()):
        raise expected("kl", f"shape {wanted}", f"shape {divergence.shape}")
    if jax.tree.leaves(parameters.variational) and not _reads_latent(problem, parameters, batch):
        raise InputError(
            "likelihood: expected a distribution that depends on the latent variables, got one "
            "that ignores them; its predictive Fisher is zero for every variational parameter. "
            "Use the latent argument in likelihood()."
        )


def _shapes_of(predictive: Callable, parameters: Parameters, batch: PyTree) -> tuple[list, Array]:
    try:
        return jax.eval_shape(predictive, parameters, jax.random.key(0))
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        shapes = [
            eqx.tree_pformat(tree, short_arrays=True, indent=0).replace("\n", " ")[:300]
            for tree in (parameters, batch)
        ]
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
        raise InputError(
            f"problem: expected one that takes the params {shapes[0]} and a batch {shapes[1]}, "
            f"got {reason}."
        ) from error


def _reads_latent(problem: AbstractProblem, parameters: Parameters, batch: PyTree) -> bool:
    noise = jax.eval_shape(lambda key: problem.noise(key, batch), jax.random.key(0))
    latent = jax.eval_shape(
        lambda noise: problem.latent(parameters.variational, noise, batch), noise
    )

    def total(latent: PyTree) -> Array:
        sites = problem.likelihood_sites(parameters.model, latent, batch)
        terms = (jnp.sum(site.distribution.log_prob(site.value)) for site in sites)
        return sum(terms, jnp.zeros(()))

    return depends(total, latent)


def parameters_of(distribution: dist.Distribution, value: Array) -> list[Array]:
    """What a distribution depends on: its leaves that can carry a gradient.

    A user's transform that cannot be flattened hides its arrays; the density of some value, of the
    shape of `value`, depends on them.
    """
    try:
        leaves = jax.tree.leaves(distribution)
    except NotImplementedError:
        zeros = jnp.zeros(jnp.shape(value), jnp.result_type(value))
        return [jnp.asarray(distribution.log_prob(zeros))]
    floating = lambda leaf: jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    return [jnp.asarray(leaf) for leaf in leaves if floating(leaf)]


def depends(function: Callable[..., PyTree], *arguments: PyTree) -> bool:
    """Whether what `function` returns depends on its arguments, by its trace alone."""
    return any(leaves_in_use(lambda *given: [function(*given)], *arguments)[0])


def leaves_in_use(function: Callable[..., list[PyTree]], *arguments: PyTree) -> list[list[bool]]:
    """Whether each item that `function` returns depends on each leaf of its arguments."""
    jaxpr, items = jax.make_jaxpr(function, return_shape=True)(*arguments)
    # An input that reaches no output is dropped by dead-code elimination.
    from jax.interpreters import partial_eval

    count = len(jaxpr.jaxpr.outvars)
    sizes = [len(jax.tree.leaves(item)) for item in items]
    used = []
    for item, size in enumerate(sizes):
        before = sum(sizes[:item])
        wanted = [before <= place < before + size for place in range(count)]
        used.append(partial_eval.dce_jaxpr(jaxpr.jaxpr, wanted)[1])
    return used
