"""A NumPyro model and guide as a `Problem`."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpyro import handlers
from numpyro.distributions.transforms import Transform

from vpng.errors import InputError, expected
from vpng.fisher.unwrap import has_arrays, parts_of, unwrapped
from vpng.numpyro.triangular import gathered
from vpng.numpyro_names import Unit
from vpng.problem import AbstractProblem, Parameters, Site, depends, leaves_in_use, parameters_of

Trace = Mapping[str, dict[str, Any]]


class Call(NamedTuple):
    """What the model and the guide are called with, and what is held fixed while they run.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        subsamples: the indices of every subsampled plate.
        mutable: values of `numpyro.mutable` sites.
    """

    args: tuple
    kwargs: dict[str, Any]
    subsamples: dict[str, Array]
    mutable: dict[str, Any]

    @property
    def fixed(self) -> dict[str, Any]:
        """The values of plates and mutable sites, the latter copied: a model writes into them."""
        return {**self.subsamples, **jax.tree.map(lambda leaf: leaf, self.mutable)}


class TracedProblem(AbstractProblem):
    """The problem that a model and a guide describe, in unconstrained parameters.

    Lambda are the parameters of the guide, theta those that only the model has; both are
    dictionaries by site name. The latent is a dictionary of every value that the guide samples.
    Built by `traced_problem`.

    Attributes:
        model: the model.
        guide: the guide.
        transforms: from unconstrained to constrained, for every parameter.
        num_data: number of observations, plates that are subsampled counted whole.
        prior_names: latents whose prior holds information, in the order of the model.
        root_names: those whose prior has no parents.
        subsampled: whether any plate is.
        by_datum: whether the guide has parameters for single data of a plate that is subsampled.
        model_names: parameters of the model alone.
        shared_names: parameters of the guide that the model reads too, along with the latents.
        held_density: whether log q(z; lambda) is to be had for a z that is held fixed, which for a
            flow takes the inverse of its network.
        factor_names: of what is added to the log density and is no distribution.
        summed_names: discrete latents of the model that the guide does not draw, since the loss
            sums over them.
        shapes: of the unconstrained parameters, by name.
        num_samples: of every latent in one run of the guide, along the first axis; None if it draws
            each once. The model is then run once for every sample.
        reparameterised_guide: whether gradients flow through all latents.
    """

    model: Callable = eqx.field(static=True)
    guide: Callable = eqx.field(static=True)
    transforms: Mapping[str, Transform] = eqx.field(static=True)
    num_data: int = eqx.field(static=True)
    prior_names: tuple[str, ...] = eqx.field(default=(), static=True)
    root_names: frozenset[str] = eqx.field(default=frozenset(), static=True)
    subsampled: bool = eqx.field(default=False, static=True)
    model_names: frozenset[str] = eqx.field(default=frozenset(), static=True)
    shared_names: frozenset[str] = eqx.field(default=frozenset(), static=True)
    held_density: bool = eqx.field(default=True, static=True)
    by_datum: bool = eqx.field(default=False, static=True)
    factor_names: tuple[str, ...] = eqx.field(default=(), static=True)
    summed_names: frozenset[str] = eqx.field(default=frozenset(), static=True)
    shapes: dict[str, PyTree] = eqx.field(default_factory=dict, static=True)
    local: bool = eqx.field(default=False, static=True)
    num_samples: int | None = eqx.field(default=None, static=True)
    reparameterised_guide: bool = eqx.field(default=True, static=True)

    def batch_size(self, batch: Call) -> int:
        return self.num_data

    def first_data(self, batch: Call, count: int) -> Call:
        if self.num_data <= count:
            return batch
        raise expected(
            "max_data",
            "None for a problem whose arguments are not its data, such as a NumPyro model, where a "
            "subsampled plate takes its place",
            count,
        )

    def reparameterised(self, variational: PyTree, batch: Call) -> bool:
        return self.reparameterised_guide

    def has_held_density(self) -> bool:
        return self.held_density

    def sums_over_latents(self) -> bool:
        return bool(self.summed_names)

    def noise(self, rng_key: PRNGKeyArray, batch: Call) -> PRNGKeyArray:
        return rng_key

    def latent(self, variational: PyTree, noise: PRNGKeyArray, batch: Call) -> dict[str, Array]:
        return self._drawn(self.guide_trace(variational, noise, batch))

    def latent_for_sites(
        self, parameters: Parameters, noise: PRNGKeyArray, batch: Call
    ) -> dict[str, Array]:
        latent = self.latent(parameters.variational, noise, batch)
        if not self.summed_names:
            return latent
        key = jax.random.fold_in(noise, 1)
        trace = self.model_trace(parameters.model, latent, batch, key)
        return latent | {name: trace[name]["value"] for name in sorted(self.summed_names)}

    def kl(self, parameters: Parameters, latent: PyTree, batch: Call) -> Float[Array, ""]:
        """Log q(z) - log p(z), with factors counted in p, as `Trace_ELBO` has it."""
        guide = self.guide_trace(parameters.variational, jax.random.key(0), batch, latent)
        return self._divergence(guide, parameters.model, latent, batch)

    def latent_and_kl(
        self, parameters: Parameters, noise: PRNGKeyArray, batch: Call
    ) -> tuple[dict[str, Array], Float[Array, ""]]:
        guide = self.guide_trace(parameters.variational, noise, batch)
        latent = self._drawn(guide)
        return latent, self._divergence(guide, parameters.model, latent, batch)

    def _divergence(
        self, guide: Trace, model: PyTree, latent: Mapping[str, Array], batch: Call
    ) -> Float[Array, ""]:
        log_q = sum(log_density(site) for site in guide.values() if site["type"] == "sample")
        log_p = sum(
            log_density(site)
            for site in self.model_trace(model, latent, batch).values()
            if site["type"] == "sample" and not is_observation(site)
        )
        return jnp.asarray(log_q - log_p)

    def latent_and_log_ratio(
        self, parameters: Parameters, noise: PRNGKeyArray, batch: Call
    ) -> tuple[dict[str, Array], Float[Array, ""]]:
        return self.latent_and_kl(parameters, noise, batch)

    def likelihood_sites(self, model: PyTree, latent: PyTree, batch: Call) -> list[Site]:
        trace = self.model_trace(model, latent, batch)
        return [self._site(site) for site in trace.values() if is_observation(site)]

    def prior_sites(self, model: PyTree, latent: PyTree, batch: Call) -> list[Site]:
        trace = self.model_trace(model, latent, batch)
        return [
            self._site(site, moving=not site["fn"].is_discrete)
            for site in trace.values()
            if _has_density(site)
        ]

    def roots(self, model: PyTree, latent: PyTree, batch: Call) -> list[bool]:
        return [name in self.root_names for name in self.prior_names]

    def approximation_sites(self, variational: PyTree, latent: PyTree, batch: Call) -> list[Site]:
        frozen = {
            name: jax.lax.stop_gradient(value)
            for name, value in latent.items()
            if name not in self.shared_names
        }
        trace = self.guide_trace(variational, jax.random.key(0), batch, frozen)
        return [
            self._site(site)
            for site in trace.values()
            if _is_latent(site) and not isinstance(site["fn"], dist.Delta)
        ]

    def has_log_factors(self) -> bool:
        return bool(self.factor_names)

    def log_factors(self, model: PyTree, latent: PyTree, batch: Call) -> Float[Array, " F"]:
        trace = self.model_trace(model, latent, batch)
        scaled = lambda site: (
            site["fn"].log_factor * (1.0 if site["scale"] is None else site["scale"])
        )
        found = [trace[name] for name in trace if _is_factor(trace[name])]
        return jnp.concatenate(
            [jnp.ravel(scaled(site | {"fn": unwrapped(site["fn"])})) for site in found]
        )

    def latent_weight(self, batch: Call) -> float:
        return 1.0 / self.num_data

    def constrained(self, parameters: PyTree) -> dict[str, PyTree]:
        """The values of the parameter sites from their unconstrained ones."""
        return {name: self.transforms[name](value) for name, value in parameters.items()}

    def model_trace(
        self,
        model: PyTree,
        latent: Mapping[str, Array],
        batch: Call,
        rng_key: PRNGKeyArray | None = None,
    ) -> Trace:
        """The model run with these parameters and latents; the key draws what is not among them."""
        rng_key = jax.random.key(0) if rng_key is None else rng_key
        common = {**self.constrained(model), **batch.fixed}
        if self.num_samples is None:
            return _run(self.model, rng_key, {**common, **latent}, batch)
        shared = {name: latent[name] for name in latent if name in self.shared_names}
        trace = {}
        for i in range(self.num_samples):
            own = {name: latent[name][i] for name in latent if name not in shared}
            sites = _run(self.model, rng_key, {**common, **shared, **own}, batch)
            trace |= {_of_sample(name, i, site): site for name, site in sites.items()}
        return trace

    def guide_trace(
        self,
        variational: PyTree,
        rng_key: PRNGKeyArray,
        batch: Call,
        latent: Mapping[str, Array] | None = None,
    ) -> Trace:
        """The guide run with these parameters, and these latents if they are given."""
        given = {**self.constrained(variational), **batch.fixed}
        return _run(self.guide, rng_key, {**given, **(latent or {})}, batch)

    def score(
        self,
        active: PyTree,
        embed: Callable[[PyTree], PyTree],
        rng_key: PRNGKeyArray,
        batch: Call,
    ) -> PyTree:
        """The score of q at its own draw: the gradient of log q(z; lambda), z held, of mean zero.

        Args:
            active: the values to differentiate in.
            embed: makes lambda from them.
            rng_key: of the draw.
            batch: the call.
        """
        drawn = jax.lax.stop_gradient(
            {
                name: (site["value"], site.get("intermediates"))
                for name, site in self.guide_trace(embed(active), rng_key, batch).items()
                if _is_latent(site) or site["type"] == "plate"
            }
        )
        held = {name: value for name, (value, _) in drawn.items()}

        def log_q(active: PyTree) -> Array:
            trace = self.guide_trace(embed(active), rng_key, batch, held)
            # With the values before every transform as they were drawn: an inverse loses digits.
            densities = [
                log_density({**site, "intermediates": drawn[name][1]})
                for name, site in trace.items()
                if _is_latent(site)
            ]
            return sum(densities, start=jnp.zeros(()))

        return jax.grad(log_q)(active)

    def call(
        self, rng_key: PRNGKeyArray, args: tuple, kwargs: dict[str, Any], mutable: PyTree
    ) -> Call:
        """A call whose subsampled plates are drawn from `rng_key`."""
        if not self.subsampled:
            return Call(args, kwargs, {}, mutable or {})
        plain = Call(args, kwargs, {}, mutable or {})
        # Plates depend on neither latents nor parameters: any value will do.
        latents = handlers.substitute(
            handlers.seed(self.model, rng_key), substitute_fn=_feasible_value
        )
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.shapes)
        with handlers.block():
            model = handlers.trace(
                handlers.substitute(latents, data={**self.constrained(zeros), **plain.fixed})
            ).get_trace(*args, **kwargs)
        plates = {
            name: site["value"]
            for name, site in model.items()
            if site["type"] == "plate" and _is_subsampled(site)
        }
        return plain._replace(subsamples=plates)

    def _drawn(self, guide: Trace) -> dict[str, Array]:
        """The latents, and what else the model has from the guide."""
        shared = {name: guide[name]["value"] for name in sorted(self.shared_names)}
        return {**_latents(guide), **shared}

    def _site(self, site: dict[str, Any], *, moving: bool = False) -> Site:
        scale = 1.0 if site["scale"] is None else site["scale"]
        return Site(site["fn"], site["value"], scale / self.num_data, moving, site["name"])


def _run(function: Callable, rng_key: PRNGKeyArray, given: dict[str, Any], call: Call) -> Trace:
    seeded = handlers.seed(function, rng_key)
    return handlers.trace(handlers.substitute(seeded, data=given)).get_trace(
        *call.args, **call.kwargs
    )


def _of_sample(name: str, index: int, site: dict[str, Any]) -> str:
    """The name of a site in the trace of all samples, which share parameters and plates."""
    return f"{name}[{index}]" if site["type"] == "sample" else name


def log_density(site: dict[str, Any]) -> Float[Array, ""]:
    """The scaled log-density of one sample site."""
    if site["intermediates"]:
        value = site["fn"].log_prob(site["value"], site["intermediates"])
    else:
        value = site["fn"].log_prob(site["value"])
    return jnp.sum(value if site["scale"] is None else site["scale"] * value)


def _latents(trace: Trace) -> dict[str, Array]:
    return {name: site["value"] for name, site in trace.items() if _is_latent(site)}


def _is_subsampled(site: dict[str, Any]) -> bool:
    size, subsample_size = site["args"][0], site["args"][1]
    return subsample_size is not None and subsample_size != size


def _is_latent(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def _is_factor(site: dict[str, Any]) -> bool:
    return site["type"] == "sample" and isinstance(unwrapped(site["fn"]), Unit)


def is_observation(site: dict[str, Any]) -> bool:
    """Whether the site holds data."""
    return site["type"] == "sample" and site["is_observed"] and not _is_factor(site)


def _feasible_value(site: dict[str, Any]) -> Array | None:
    """A value of a latent; None where its support does not tell any, and it has to be sampled."""
    if not _is_latent(site):
        return None
    shape = (*site["kwargs"].get("sample_shape", ()), *site["fn"].shape())
    try:
        support = site["fn"].support
        if support.is_discrete:
            return support.feasible_like(jnp.zeros(shape, int))
        transform = dist.biject_to(support)
    except NotImplementedError:
        return None
    return transform(jnp.zeros(transform.inverse_shape(shape)))


def _transforms(trace: Trace) -> list[Transform]:
    """Of all latents of a guide."""
    families = [unwrapped(site["fn"]) for site in trace.values() if _is_latent(site)]
    return [
        transform
        for family in families
        if isinstance(family, dist.TransformedDistribution)
        for transform in family.transforms
    ]


def _has_flow(
    guide_trace: Callable[[PyTree], Trace], variational: PyTree, transforms: list[Transform]
) -> bool:
    """Whether a transform of a latent depends on the parameters, as far as that can be seen.

    The bounds of a support may be arrays too, but do not.
    """
    with_arrays = [transform for transform in transforms if has_arrays(transform)]
    if not with_arrays:
        return False
    if any(not _is_plain(transform) for transform in with_arrays):
        return True
    arrays = lambda variational: jax.tree.leaves(_transforms(guide_trace(variational)))
    return depends(arrays, variational)


def _is_plain(transform: Transform) -> bool:
    """Whether all arrays of a transform are among its leaves, and none in a function it holds."""
    leaves = parts_of(transform)
    return leaves is not None and not any(callable(leaf) for leaf in leaves)


def _has_density(site: dict[str, Any]) -> bool:
    """Whether a latent's prior has a density, so that it has an information."""
    without = dist.ImproperUniform | dist.Delta
    return _is_latent(site) and not isinstance(unwrapped(site["fn"]), without)


def traced_problem(
    model: Callable,
    guide: Callable,
    params: Mapping[str, PyTree],
    transforms: dict[str, Transform],
    rng_key: PRNGKeyArray,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    mutable: PyTree = None,
    *,
    allow_discrete: bool = False,
    multi_sample: bool = False,
) -> tuple[TracedProblem, Parameters]:
    """The problem of a model and a guide, and its parameters from unconstrained ones.

    Args:
        model: the model.
        guide: the guide.
        params: unconstrained values of every parameter site of both.
        transforms: to their constrained values.
        rng_key: for one run of each.
        args: their positional arguments.
        kwargs: their keyword arguments.
        mutable: values of mutable sites.
        allow_discrete: whether the loss copes with sites that cannot be reparameterised.
        multi_sample: whether the guide draws several samples at once, along the first axis.

    Raises:
        InputError: naming a site that cannot be reparameterised and what to do about it.
    """
    call = Call(args, kwargs or {}, {}, mutable or {})
    # Bounds may be arrays, and are constants of the problem: no tree for anybody to look into.
    quick = MappingProxyType({name: gathered(each) for name, each in transforms.items()})
    bare = TracedProblem(model=model, guide=guide, transforms=quick, num_data=1)
    whole = dict(params)
    traces: list[Trace] = []

    def both(whole: dict[str, PyTree], rng_key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        nonlocal bare
        guide_trace = bare.guide_trace(whole, rng_key, call)
        latent = _latents(guide_trace)
        fixed = {n: site["value"] for n, site in guide_trace.items() if site["type"] == "plate"}
        if multi_sample:
            bare = dataclasses.replace(bare, num_samples=_number_of_samples(guide_trace))
        traces[:] = guide_trace, bare.model_trace(whole, latent, call._replace(subsamples=fixed))
        return latent, fixed

    try:
        # What is asked of the traces is known without computing any value, and kept on purpose.
        with jax.check_tracer_leaks(False):
            latent, fixed = jax.eval_shape(both, whole, rng_key)
    except jax.errors.ConcretizationTypeError:
        # A model may read the value of a parameter, as long as nobody differentiates.
        latent, fixed = both(whole, rng_key)
    guide_trace, model_trace = traces
    if not allow_discrete:
        _check_reparameterised(guide_trace, model_trace)
    variational = {
        name: value
        for name, value in whole.items()
        if name in guide_trace and guide_trace[name]["type"] == "param"
    }
    parameters = Parameters(
        variational, {name: value for name, value in whole.items() if name not in variational}
    )
    plates = [
        site
        for trace in (guide_trace, model_trace)
        for site in trace.values()
        if site["type"] == "plate"
    ]
    candidates = [name for name, site in model_trace.items() if _has_density(site)]

    def priors(fixed: PyTree, model_params: PyTree, latent: PyTree) -> list[list[Array]]:
        trace = bare.model_trace(model_params, latent, call._replace(subsamples=fixed))
        return [parameters_of(trace[name]["fn"], trace[name]["value"]) for name in candidates]

    shared = {name: value for name, value in variational.items() if name in model_trace}
    num_fixed = len(jax.tree.leaves(fixed))
    try:
        used = leaves_in_use(priors, fixed, {**parameters.model, **shared}, latent)
        has_parents = [any(leaves[num_fixed:]) for leaves in used]
    except jax.errors.ConcretizationTypeError:
        has_parents = [True] * len(candidates)
    roots = frozenset(n for n, some in zip(candidates, has_parents, strict=True) if not some)
    problem = TracedProblem(
        model=model,
        guide=guide,
        transforms=quick,
        num_data=_number_of_data(model_trace),
        prior_names=tuple(candidates),
        root_names=roots,
        subsampled=any(_is_subsampled(site) for site in plates),
        model_names=frozenset(parameters.model),
        shared_names=frozenset(shared),
        held_density=not _has_flow(
            lambda given: bare.guide_trace({**whole, **given}, jax.random.key(0), call),
            variational,
            _transforms(guide_trace),
        ),
        by_datum=_has_parameters_by_datum(guide_trace, variational),
        factor_names=tuple(name for name, site in model_trace.items() if _is_factor(site)),
        summed_names=frozenset(
            name
            for name, site in model_trace.items()
            if not multi_sample
            and _is_latent(site)
            and site["fn"].is_discrete
            and name not in guide_trace
        ),
        shapes=jax.eval_shape(lambda: whole),
        num_samples=bare.num_samples,
        reparameterised_guide=all(
            site["fn"].has_rsample for site in guide_trace.values() if _is_latent(site)
        ),
    )
    return problem, parameters


def _number_of_samples(guide_trace: Trace) -> int:
    """How many a guide draws at once: the length of the first axis of all its latents."""
    lengths = {name: value.shape[:1] for name, value in _latents(guide_trace).items()}
    if len(set(lengths.values())) != 1 or () in lengths.values():
        raise InputError(
            "guide: expected as many samples of every latent, along the first axis, since "
            f"multi_sample_guide=True, got {lengths}. Expand each latent to the number of samples."
        )
    [(length,)] = set(lengths.values())
    return length


def _has_parameters_by_datum(guide_trace: Trace, variational: PyTree) -> bool:
    """Whether a latent of a subsampled plate goes with parameters that are as many as its data."""
    frames = [
        frame.name
        for site in guide_trace.values()
        if _is_latent(site)
        for frame in site["cond_indep_stack"]
    ]
    sizes = {
        site["args"][0]
        for name, site in guide_trace.items()
        if site["type"] == "plate" and name in frames and _is_subsampled(site)
    }
    return any(sizes.intersection(leaf.shape) for leaf in jax.tree.leaves(variational))


def _number_of_data(model_trace: Trace) -> int:
    """Elements of the largest observed site, a subsampled plate counted whole."""
    counts = [1]
    for site in model_trace.values():
        if is_observation(site):
            size = math.prod(site["fn"].batch_shape)
            for frame in site["cond_indep_stack"]:
                plate = model_trace.get(frame.name)
                if plate is not None and _is_subsampled(plate):
                    size = size * plate["args"][0] // plate["args"][1]
            counts.append(size)
    return max(counts)


DISCRETE_REMEDY = (
    "Enumerate a discrete latent (infer={'enumerate': 'parallel'} in the model, "
    "loss=TraceEnum_ELBO()), relax it (for instance RelaxedBernoulli), or use the score-function "
    "estimator (loss=TraceGraph_ELBO()) with a guide that draws it."
)


def _check_reparameterised(guide_trace: Trace, model_trace: Trace) -> None:
    for name, site in guide_trace.items():
        if _is_latent(site) and not site["fn"].has_rsample:
            raise InputError(
                f"guide site {name!r}: expected a distribution that can be reparameterised, got "
                f"{type(unwrapped(site['fn'])).__name__}. {DISCRETE_REMEDY}"
            )
    for name, site in model_trace.items():
        if _is_latent(site) and site["fn"].is_discrete:
            raise InputError(
                f"model site {name!r}: expected a continuous latent, got the discrete "
                f"{type(unwrapped(site['fn'])).__name__}. {DISCRETE_REMEDY}"
            )
