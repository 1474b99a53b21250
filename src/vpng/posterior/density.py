"""The log density of a NumPyro model in unconstrained latents, as a function of one vector."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer import init_to_uniform
from numpyro.infer.util import constrain_fn, potential_energy

from vpng.errors import InputError, expected
from vpng.numerics.trees import size
from vpng.posterior.batches import solves


class Latent(NamedTuple):
    """One continuous latent site.

    Attributes:
        name: of the site.
        shape: of its unconstrained value.
    """

    name: str
    shape: tuple[int, ...]


class LogDensity(eqx.Module):
    """Log p(x, z), the change of variables to unconstrained latents z included.

    The entries of z are the latents by name in alphabetical order, each flattened. Data are leaves,
    so that programs take them as arguments.

    Attributes:
        model: the model; discrete latents are summed over.
        latents: its continuous latents.
        enumerated: the first dimension free for values of discrete latents; None without any.
        one_by_one: whether points are evaluated one after the other; see `vpng.posterior.batches`.
        args: the model's positional arguments.
        kwargs: its keyword arguments.
        params: values of the model's own parameters.
    """

    model: Callable = eqx.field(static=True)
    latents: tuple[Latent, ...] = eqx.field(static=True)
    enumerated: int | None = eqx.field(static=True)
    one_by_one: bool = eqx.field(static=True)
    args: tuple
    kwargs: dict[str, Any]
    params: dict[str, PyTree]

    @property
    def size(self) -> int:
        """How many latents there are, every entry counted."""
        return sum(math.prod(latent.shape) for latent in self.latents)

    def __call__(self, vector: Float[Array, " P"]) -> Float[Array, ""]:
        model, values = self.with_parameters(), self.unflatten(vector)
        summed = self.enumerated is not None
        if summed:
            from numpyro.contrib.funsor import config_enumerate, enum

            model = enum(config_enumerate(model), self.enumerated)
        # Nothing is drawn: all latents are given. Some models ask for a key all the same.
        model = handlers.seed(model, jax.random.key(0))
        return -jnp.asarray(potential_energy(model, self.args, self.kwargs, values, enum=summed))

    def with_parameters(self) -> Callable:
        """The model with its own parameters at their values."""
        return handlers.substitute(self.model, data=self.params) if self.params else self.model

    def constrained(self, vector: Float[Array, " P"]) -> dict[str, Array]:
        """The values of the latents and of the deterministic sites."""
        model = handlers.seed(self.with_parameters(), jax.random.key(0))
        values = self.unflatten(vector)
        return constrain_fn(model, self.args, self.kwargs, values, return_deterministic=True)

    def unflatten(self, vector: Float[Array, "... P"]) -> dict[str, Array]:
        """The entries of a vector by the name of their site."""
        lengths = [math.prod(latent.shape) for latent in self.latents]
        parts = jnp.split(vector, np.cumsum(lengths)[:-1], axis=-1)
        return {
            latent.name: part.reshape(*vector.shape[:-1], *latent.shape)
            for latent, part in zip(self.latents, parts, strict=True)
        }

    def labels(self) -> list[str]:
        """A name for every entry of the vector."""
        return [
            latent.name + (f"[{', '.join(map(str, index))}]" if latent.shape else "")
            for latent in self.latents
            for index in np.ndindex(*latent.shape)
        ]

    def flatten(self, values: Mapping[str, Array]) -> Float[Array, "... P"]:
        """The inverse of `unflatten`."""
        leading = values[self.latents[0].name]
        batch = leading.shape[: leading.ndim - len(self.latents[0].shape)]
        return jnp.concatenate(
            [values[latent.name].reshape(*batch, -1) for latent in self.latents], axis=-1
        )


def log_density(
    model: Callable, args: tuple, kwargs: dict[str, Any], params: Mapping[str, PyTree] | None = None
) -> LogDensity:
    """The log density of a model called with these arguments.

    Args:
        model: the model.
        args: its positional arguments.
        kwargs: its keyword arguments.
        params: constrained values of its own parameters.

    Raises:
        InputError: naming a site that has no density in continuous latents.
    """
    args, kwargs = jax.tree.map(_as_jax, (args, kwargs))
    trace = _traced(model, args, kwargs, params or {})
    continuous, discrete = _latents(trace)
    _check_parameters(trace, params or {})
    _check_plates(trace)
    if not continuous:
        missing = f"only the discrete {', '.join(map(repr, discrete))}" if discrete else "none"
        raise expected("model", "at least one continuous latent", missing)
    own = {name: value for name, value in (params or {}).items() if name in trace}
    ordered = tuple(Latent(name, continuous[name]) for name in sorted(continuous))
    free = _free_dimension(trace) if discrete else None
    density = LogDensity(model, ordered, free, False, args, kwargs, own)
    if size(jax.eval_shape(density.unflatten, jnp.zeros(density.size))) == 0:
        raise expected("model", "at least one continuous latent", "only empty ones")
    alone = solves(jax.make_jaxpr(density)(jnp.zeros(density.size)))
    return dataclasses.replace(density, one_by_one=alone)


def _as_jax(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype != object else leaf


def _traced(
    model: Callable, args: tuple, kwargs: dict[str, Any], params: Mapping[str, PyTree]
) -> dict[str, dict[str, Any]]:
    """One run of the model, none of its values computed if it allows that."""
    found: dict[str, dict[str, Any]] = {}

    def run() -> None:
        seeded = handlers.seed(handlers.substitute(model, data=dict(params)), jax.random.key(0))
        started = handlers.substitute(seeded, substitute_fn=init_to_uniform)
        with handlers.block():
            found.update(handlers.trace(started).get_trace(*args, **kwargs))

    try:
        jax.eval_shape(run)
    except jax.errors.ConcretizationTypeError:
        run()
    return found


def _latents(trace: dict[str, dict[str, Any]]) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """The unconstrained shapes of the continuous latents, and the names of the discrete ones."""
    continuous, discrete = {}, []
    for name, site in trace.items():
        if site["type"] != "sample" or site["is_observed"]:
            continue
        if site["fn"].support.is_discrete:
            if not site["fn"].has_enumerate_support:
                raise InputError(
                    f"model site {name!r}: expected a continuous latent, or a discrete one of "
                    f"finitely many values to sum over, got {type(site['fn']).__name__}."
                )
            discrete.append(name)
        else:
            transform = biject_to(site["fn"].support)
            continuous[name] = tuple(transform.inverse_shape(jnp.shape(site["value"])))
    return continuous, discrete


def _check_parameters(trace: dict[str, dict[str, Any]], params: Mapping[str, PyTree]) -> None:
    own = [n for n, site in trace.items() if site["type"] == "param" and n not in params]
    if own:
        raise InputError(
            f"model: expected latents only, got the parameters {own}, which have no posterior. "
            "Fit them with vpng.numpyro.SVI, whose method `posterior` holds them at their values."
        )


def _check_plates(trace: dict[str, dict[str, Any]]) -> None:
    for name, site in trace.items():
        if site["type"] != "plate":
            continue
        whole, part = site["args"][:2]
        if part is not None and part != whole:
            raise expected(
                f"plate {name!r}", f"all {whole} of its data", f"subsamples of {part}, of which "
                "each has another density"
            )  # fmt: skip


def _free_dimension(trace: dict[str, dict[str, Any]]) -> int:
    """The first dimension to the left of all plates."""
    dims = [
        frame.dim
        for site in trace.values()
        if site["type"] == "sample"
        for frame in site["cond_indep_stack"]
    ]
    return min(dims, default=0) - 1
