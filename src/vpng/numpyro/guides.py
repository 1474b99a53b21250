"""Which of NumPyro's autoguides are location-scale approximations, and of which parameters."""

import math
from collections.abc import Callable

import jax
from numpyro.distributions.transforms import IdentityTransform
from numpyro.infer import autoguide

from vpng.adaptive import (
    AbstractGeometry,
    AveragedDense,
    Cholesky,
    Linearised,
    LocationScale,
    ManyLocations,
    PerCoordinate,
    Stiffness,
)
from vpng.numpyro.problem import TracedProblem
from vpng.problem import Parameters

DENSE_LIMIT = 1200
"""Most rows of a matrix that is factorised in every step."""

OF_ANNEALING = ("_beta_increments", "_eta0", "_eta_coeff", "_gamma", "_mass_matrix")
"""Endings of the parameters of annealed importance sampling: of order one, as weights are."""

WEIGHT_NATS = 1.0
"""What moving a weight of a network by one counts for in the metric, beyond what is seen of it."""


MOST_PARTICLES = 10
"""Of the default loss."""

LEAST_PARTICLES = 4
"""Of the default loss: two halves, each with a mean and one apart from it."""


def has_many_parameters(guide: Callable, problem: TracedProblem, parameters: Parameters) -> bool:
    """Whether no matrix of the parameters is formed."""
    structured = _location_scale(guide, problem, parameters)
    return structured is None and _size(parameters) > DENSE_LIMIT


def geometry_of(
    guide: Callable, problem: TracedProblem, parameters: Parameters
) -> AbstractGeometry:
    """The geometry that fits a guide and the number of its parameters."""
    structured = _location_scale(guide, problem, parameters)
    if structured is not None:
        return structured
    factorised = _location_scale(guide, problem, parameters, limit=math.inf)
    if factorised is not None and isinstance(factorised.kind, PerCoordinate):
        return ManyLocations(
            factorised.locations, factorised.scales, factorised.transforms, factorised.kind
        )
    stiffness = Stiffness(_weights(guide, parameters), WEIGHT_NATS / problem.num_data)
    constrained = frozenset(
        name
        for name, transform in problem.transforms.items()
        if not isinstance(transform, IdentityTransform)
    )
    if _size(parameters) <= DENSE_LIMIT:
        return AveragedDense(stiffness, problem.subsampled, constrained, problem.num_data)
    return Linearised(
        stiffness=stiffness,
        num_data=problem.num_data,
        by_datum=problem.by_datum,
        scales=constrained if problem.subsampled else frozenset(),
    )


def default_particles(geometry: AbstractGeometry, parameters: Parameters) -> int:
    """Two for every latent, as far as the bounds allow.

    In nats the noise of a step goes with the number of latents over that of particles.
    """
    if not isinstance(geometry, LocationScale):
        return MOST_PARTICLES
    num_latents = _size([parameters.variational[name] for name in geometry.locations])
    return min(MOST_PARTICLES, max(LEAST_PARTICLES, 2 * num_latents))


def _location_scale(
    guide: Callable, problem: TracedProblem, parameters: Parameters, limit: float = DENSE_LIMIT
) -> LocationScale | None:
    if problem.by_datum:
        # Densities of single data are scaled, and a score is then no noise over a scale.
        return None
    names = parameters.variational
    prefix = getattr(guide, "prefix", "auto")
    if type(guide) is autoguide.AutoNormal:
        ending = f"_{prefix}_loc"
        sites = [name.removesuffix(ending) for name in names if name.endswith(ending)]
        locations = tuple(f"{site}_{prefix}_loc" for site in sites)
        scales = tuple(f"{site}_{prefix}_scale" for site in sites)
        kind = PerCoordinate(problem.num_data)
    elif type(guide) is autoguide.AutoDiagonalNormal:
        locations, scales, kind = (
            (f"{prefix}_loc",),
            (f"{prefix}_scale",),
            PerCoordinate(problem.num_data),
        )
    elif type(guide) is autoguide.AutoMultivariateNormal:
        locations, scales, kind = (
            (f"{prefix}_loc",),
            (f"{prefix}_scale_tril",),
            Cholesky(problem.num_data),
        )
    else:
        return None
    if not locations or set(names) != {*locations, *scales}:
        return None
    centre = _size([names[name] for name in locations]) + _size(parameters.model)
    if centre > limit:
        return None
    transforms = tuple(problem.transforms[name] for name in scales)
    return LocationScale(locations, scales, transforms, kind)


def _weights(guide: Callable, parameters: Parameters) -> frozenset[str]:
    """Names of parameters that have a unit of their own."""
    annealed = isinstance(guide, autoguide.AutoDAIS | autoguide.AutoSemiDAIS)
    endings = ("$params", *OF_ANNEALING) if annealed else ("$params",)
    return frozenset(name for part in parameters for name in part if name.endswith(endings))


def _size(tree: object) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
