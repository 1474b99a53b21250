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
    Eliminated,
    Linearised,
    LocationScale,
    LowRank,
    ManyLocations,
    PerCoordinate,
    Stiffness,
)
from vpng.adaptive.units import PRODUCTS_PER_STEP
from vpng.checks import is_traced
from vpng.fisher import FisherOperator
from vpng.numerics.cost import forming_pays
from vpng.numpyro.problem import TracedProblem
from vpng.problem import Parameters
from vpng.structure import Structure, dense, structure_of

OF_ANNEALING = ("_beta_increments", "_eta0", "_eta_coeff", "_gamma", "_mass_matrix")
"""Endings of the parameters of annealed importance sampling: of order one, as weights are."""

WEIGHT_NATS = 1.0
"""What moving a weight of a network by one counts for in the metric, beyond what is seen of it."""


FEW_LATENTS = 64
"""Below which nothing is gained by what is zero."""

PRODUCTS_OF_A_STEP = 40
"""Products with the rows that cost as much as ten particles, their gradients and the test."""

PART_FOR_METRICS = 0.25
"""Of the time of steps that hardly move, what metrics may take."""

LEAST_STEPS, MOST_STEPS = 4, 50
"""For which a metric is kept there."""

MOST_PARTICLES = 10
"""Of the default loss."""

LEAST_PARTICLES = 4
"""Of the default loss: two halves, each with a mean and one apart from it."""


def has_many_parameters(guide: Callable, problem: TracedProblem, parameters: Parameters) -> bool:
    """Whether no matrix of the parameters is formed."""
    structured = _location_scale(guide, problem, parameters)
    return structured is None and not _is_formed(_size(parameters))


def geometry_of(
    guide: Callable,
    problem: TracedProblem,
    parameters: Parameters,
    metric_here: Callable[[], FisherOperator] | None = None,
) -> AbstractGeometry:
    """The geometry that fits a guide and the number of its parameters.

    Args:
        guide: the guide.
        problem: of model and guide.
        parameters: the first ones.
        metric_here: makes the metric there, in one draw; without it no structure is looked for.
    """
    if type(guide) is autoguide.AutoLowRankMultivariateNormal:
        low_rank = _low_rank(guide, problem, parameters, metric_here)
        if low_rank is not None:
            return low_rank
    factorised = _location_scale(guide, problem, parameters, of_any_size=True)
    if factorised is not None and isinstance(factorised.kind, PerCoordinate):
        return _factorised(factorised, problem, parameters, metric_here)
    structured = _location_scale(guide, problem, parameters)
    if structured is not None:
        return structured
    stiffness = Stiffness(_weights(guide, parameters), WEIGHT_NATS / problem.num_data)
    constrained = frozenset(
        name
        for name, transform in problem.transforms.items()
        if not isinstance(transform, IdentityTransform)
    )
    if _is_formed(_size(parameters)):
        return AveragedDense(stiffness, problem.subsampled, constrained, problem.num_data)
    return Linearised(
        stiffness=stiffness,
        num_data=problem.num_data,
        by_datum=problem.by_datum,
        scales=constrained if problem.subsampled else frozenset(),
    )


def _factorised(
    geometry: LocationScale,
    problem: TracedProblem,
    parameters: Parameters,
    metric_here: Callable[[], FisherOperator] | None,
) -> LocationScale:
    """The representation of the curvature of a factorised approximation."""
    num_latents = geometry.num_latents(parameters)
    if num_latents < FEW_LATENTS:
        return geometry
    parts = (geometry.locations, geometry.scales, geometry.transforms, geometry.kind)
    structure = _structure(geometry, problem, parameters, metric_here)
    if structure is None:
        return ManyLocations(*parts)
    return Eliminated(*parts, structure=structure, longest_age=_longest_age(structure))


def _low_rank(
    guide: Callable,
    problem: TracedProblem,
    parameters: Parameters,
    metric_here: Callable[[], FisherOperator] | None,
) -> LowRank | None:
    """The geometry of a factor of low rank; None where another one does."""
    prefix = getattr(guide, "prefix", "auto")
    location, scale, columns = (f"{prefix}_{name}" for name in ("loc", "scale", "cov_factor"))
    others = {location, scale, columns} != set(parameters.variational)
    if others or problem.by_datum or _is_formed(_size(parameters)):
        return None
    kind = PerCoordinate(problem.num_data)
    transforms = (problem.transforms[scale],)
    centre = LocationScale((location,), (scale,), transforms, kind)
    structure = _structure(centre, problem, parameters, metric_here)
    if structure is None:
        return None
    return LowRank(
        (location,),
        (scale,),
        transforms,
        kind,
        structure=structure,
        longest_age=_longest_age(structure),
        columns=columns,
    )


def _structure(
    geometry: LocationScale,
    problem: TracedProblem,
    parameters: Parameters,
    metric_here: Callable[[], FisherOperator] | None,
) -> Structure | None:
    """What is zero in the curvature, one dense block at worst; None if that is too large."""
    traced = any(is_traced(leaf) for leaf in jax.tree.leaves(parameters))
    if metric_here is not None and not (traced or problem.subsampled):
        active, embed = geometry.centre(parameters)
        rows = lambda point: metric_here().restricted(active, embed).row_function(point)
        structure = structure_of(rows, active)
        if structure is not None:
            return structure
    num_latents = geometry.num_latents(parameters)
    return dense(num_latents) if _is_formed(num_latents) else None


def _longest_age(structure: Structure) -> int:
    """Steps for which a metric is kept, so that it takes a part of what they take."""
    steps = structure.num_products / (PART_FOR_METRICS * PRODUCTS_OF_A_STEP)
    return min(MOST_STEPS, max(LEAST_STEPS, math.ceil(steps)))


def default_particles(geometry: AbstractGeometry, parameters: Parameters) -> int:
    """Two for every latent, as far as the bounds allow.

    In nats the noise of a step goes with the number of latents over that of particles.
    """
    if not isinstance(geometry, LocationScale):
        return MOST_PARTICLES
    num_latents = _size([parameters.variational[name] for name in geometry.locations])
    return min(MOST_PARTICLES, max(LEAST_PARTICLES, 2 * num_latents))


def _is_formed(size: int) -> bool:
    """Whether the metric of so many parameters is formed and factorised in every step."""
    return forming_pays(size, PRODUCTS_PER_STEP)


def _location_scale(
    guide: Callable, problem: TracedProblem, parameters: Parameters, *, of_any_size: bool = False
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
    if not (of_any_size or _is_formed(centre)):
        return None
    transforms = tuple(problem.transforms[name] for name in scales)
    return LocationScale(locations, scales, transforms, kind)


def _weights(guide: Callable, parameters: Parameters) -> frozenset[str]:
    """Names of parameters that have a unit of their own."""
    annealed = isinstance(guide, autoguide.AutoDAIS | autoguide.AutoSemiDAIS)
    endings = ("$params", *OF_ANNEALING) if annealed else ("$params",)
    weights = {name for part in parameters for name in part if name.endswith(endings)}
    if isinstance(guide, autoguide.AutoSurrogateLikelihoodDAIS):
        # A surrogate's parameters bend the path of the draws only: the metric hardly sees them.
        weights |= {n for n in parameters.variational if not n.startswith(f"{guide.prefix}_")}
    return frozenset(weights)


def _size(tree: object) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
