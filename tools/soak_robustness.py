"""Problems that break optimizers, with vpng's optimizers and the automatic rule for NumPyro.

For every case: whether a parameter was ever not finite, how the run ended, and how far its ELBO per
datum is from that of a reference (a closed form, or the best run of the family). A case is well if
nothing was ever not finite and it either arrived or ended with a word of warning. One JSON object
is printed; the exit code is 1 if a case is not well.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

from vpng import ELBO, LevenbergMarquardt, Parameters, Problem, optimizers
from vpng.numpyro import SVI
from vpng.problems import GaussianMean, LogisticRegression, mlp_vae
from vpng.problems.likelihoods import PoissonLikelihood
from vpng.training import FitResult, StopReason, fit

ADAM = optax.scale_by_adam()


class Ending(NamedTuple):
    """How a case went.

    Attributes:
        finite: whether all parameters at every record were.
        words: the stop reason, or the warnings.
        gap: ELBO per datum below the reference's.
        tolerance: the largest gap that counts as arrived.
    """

    finite: bool
    words: str
    gap: float
    tolerance: float

    @property
    def well(self) -> bool:
        """Whether it arrived, or said that it did not."""
        return self.finite and (self.gap <= self.tolerance or bool(self.words))


def run(
    problem: Problem,
    params: Parameters,
    data: Any,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int = 400,
    objective: ELBO = ELBO(),
    **options: Any,
) -> tuple[FitResult, bool, str]:
    """The result, whether every record's parameters were finite, and what was said."""
    seen = []

    def look(record: Any, state: Any) -> None:
        seen.append(all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params)))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fit(
            problem,
            params,
            data,
            optimizer,
            num_steps,
            jax.random.key(0),
            objective=objective,
            record_every=20,
            callbacks=[look],
            progress=False,
            **options,
        )
    said = "; ".join(str(w.message) for w in caught if issubclass(w.category, RuntimeWarning))
    if result.stop_reason is StopReason.NOT_FINITE:
        said = said or result.stop_reason.value
    return result, all(seen), said


def toy(epsilon: float, learning_rate: float, damping: Any) -> Ending:
    """Correlation 1 - epsilon in float32; the ELBO of the posterior's mean is the reference."""
    covariance = jnp.array([[1.0, 1.0 - epsilon], [1.0 - epsilon, 1.0]], jnp.float32)
    noise = np.random.default_rng(0).multivariate_normal([1.0, 2.0], covariance, 50)
    data = jnp.asarray(noise, jnp.float32)
    # Of the posterior's own size: noise of scale one would drown the narrow direction.
    problem = GaussianMean.create(covariance, 50, scale=float(np.sqrt(epsilon)))
    optimizer = optimizers.vpng(problem, learning_rate, damping=damping)
    result, finite, said = run(problem, problem.init(), data, optimizer)
    with jax.enable_x64(True):
        # The root as it is in float32 is the model; the rest of the oracle is in float64.
        root = jnp.asarray(np.asarray(problem.covariance_root), jnp.float64)
        exact = GaussianMean(num_data=50, covariance_root=root, scale=problem.scale)
        wide = jnp.asarray(np.asarray(data), jnp.float64)
        mean = jnp.asarray(np.asarray(result.params.variational), jnp.float64)
        best = exact.elbo(exact.optimum(wide), wide)
        gap = float(best - exact.elbo(mean, wide)) / 50
        worst = float(best - exact.elbo(jnp.zeros(2), wide)) / 50
    return Ending(finite, said, gap, 0.05 * worst)


def logistic_data() -> tuple[np.ndarray, np.ndarray]:
    """A hundred rows of covariates and labels."""
    generator = np.random.default_rng(1)
    covariates = generator.normal(size=(100, 4))
    labels = generator.random(100) < 1 / (1 + np.exp(-covariates @ [2.0, -1.0, 0.5, 0.0]))
    return covariates, labels.astype(float)


def logistic(prior_scale: float, start: float, learning_rate: float, damping: Any) -> Ending:
    """From a scale of the start; the reference is `logistic_reference`."""
    problem, data = LogisticRegression.create(*logistic_data(), prior_scale=prior_scale)
    init = problem.init(jax.random.key(1), 5, scale=start)
    optimizer = optimizers.vpng(problem, learning_rate, damping=damping)
    result, finite, said = run(problem, init, data, optimizer)
    reference = logistic_reference(prior_scale)
    return Ending(finite, said, _gap(problem, result, reference, data), 0.05)


@cache
def logistic_reference(prior_scale: float) -> FitResult:
    """A long Adam run from a good start, in the same loss."""
    problem, data = LogisticRegression.create(*logistic_data(), prior_scale=prior_scale)
    good = problem.init(jax.random.key(1), 5, scale=0.1)
    return run(problem, good, data, optimizers.gradient(0.02, rule=ADAM), num_steps=3000)[0]


def dead_inputs(learning_rate: float | None) -> Ending:
    """Two thirds of the pixels are always 0, and one is always 1."""
    generator = np.random.default_rng(0)
    images = (generator.random((300, 30)) < 0.5).astype(np.float32)
    images[:, 10:] = 0.0
    images[:, 11] = 1.0
    problem, params, data = mlp_vae(jax.random.key(0), images, latent_dim=3, hidden=(12, 12))
    optimizer = optimizers.network_vpng(problem, params, data, learning_rate, batch_size=50)
    result, finite, said = run(problem, params, data, optimizer, batch_size=50, objective=ELBO(1))
    reference, *_ = run(
        problem,
        params,
        data,
        optimizers.gradient(3e-3, rule=ADAM),
        batch_size=50,
        objective=ELBO(1),
        num_steps=1000,
    )
    return Ending(finite, said, _gap(problem, result, reference, data), 0.3)


def counts(rate: float, learning_rate: float | None) -> Ending:
    """Poisson autoencoder whose counts are nearly all zero, or in the tens of thousands."""
    generator = np.random.default_rng(0)
    rows = generator.poisson(rate, (200, 10)).astype(np.float32)
    problem, params, data = mlp_vae(
        jax.random.key(0), rows, latent_dim=2, hidden=(8, 8), likelihood=PoissonLikelihood()
    )
    optimizer = optimizers.network_vpng(problem, params, data, learning_rate, batch_size=50)
    result, finite, said = run(
        problem, params, data, optimizer, batch_size=50, objective=ELBO(1), num_steps=1500
    )
    reference, *_ = run(
        problem,
        params,
        data,
        optimizers.gradient(1e-2, rule=ADAM),
        batch_size=50,
        objective=ELBO(1),
        num_steps=6000,
    )
    gap = _gap(problem, result, reference, data)
    scale = abs(float(reference.history.records[-1].loss))
    return Ending(finite, said, gap, max(0.05 * scale, 0.05))


def _gap(problem: Problem, result: FitResult, reference: FitResult, data: Any) -> float:
    objective = ELBO(256)
    estimate = lambda params: float(
        objective.estimate(jax.random.key(9), problem, params, data).loss
    )
    return estimate(result.params) - estimate(reference.params)


def regression(x: Any, y: Any) -> None:
    """Logistic regression."""
    weights = numpyro.sample("w", dist.Normal(jnp.zeros(4), 10.0).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def rates(y: Any) -> None:
    """Counts with one rate."""
    level = numpyro.sample("level", dist.Normal(0.0, 20.0))
    numpyro.sample("y", dist.Poisson(jnp.exp(level)), obs=y)


def line(x: Any, y: Any) -> None:
    """A regression on two covariates that are nearly one."""
    slope = numpyro.sample("slope", dist.Normal(jnp.zeros(2), 1e4).to_event(1))
    numpyro.sample("y", dist.Normal(x @ slope, 1.0), obs=y)


def lost_by_mean_field(x: Any) -> float:
    """Nats that independent Gaussians lose to the posterior of `line`, in closed form.

    KL(q || p) of the best of them is 1/2 (sum_i log P_ii - log det P), P the posterior's precision.
    """
    wide = np.asarray(x, np.float64)
    precision = wide.T @ wide + 1e-8 * np.eye(2)
    return 0.5 * float(np.log(np.diagonal(precision)).sum() - np.linalg.slogdet(precision)[1])


def automatic(
    model: Callable, arguments: tuple, guide: Any, num_data: int, granted: float = 0.5
) -> Ending:
    """The automatic rule; the reference is its own run with a full covariance and a usual start.

    Granted are 0.05 nats a datum, and the nats that the guide cannot reach.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = SVI(model, guide).run(jax.random.key(0), 500, *arguments, progress_bar=False)
    said = "; ".join(str(w.message) for w in caught if issubclass(w.category, RuntimeWarning))
    finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(run.params))
    gap = (_middle(run) - automatic_reference(model, tuple(map(_Same, arguments)))) / num_data
    return Ending(finite, said, gap, 0.05 + granted / num_data)


class _Same(NamedTuple):
    """An array that is equal to itself alone, so that it can be a key."""

    array: Any

    def __hash__(self) -> int:
        return id(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.array is other.array


@cache
def automatic_reference(model: Callable, arguments: tuple[_Same, ...]) -> float:
    """The loss of a long run with a full covariance."""
    svi = SVI(model, AutoMultivariateNormal(model))
    given = [same.array for same in arguments]
    return _middle(svi.run(jax.random.key(0), 1500, *given, progress_bar=False))


def _middle(result: Any) -> float:
    """The median: a wide posterior of a log-rate has losses with heavy tails."""
    return float(np.median(result.losses[-100:]))


def guides(model: Callable) -> Iterator[tuple[str, Any]]:
    """Guides that start well and far off."""
    for scale in (1e-6, 0.1, 1e3):
        yield f"mean field, scale {scale:g}", AutoNormal(model, init_scale=scale)
        yield f"full, scale {scale:g}", AutoMultivariateNormal(model, init_scale=scale)


def cases() -> Iterator[tuple[str, Callable[[], Ending]]]:
    """Every case by its name."""
    adaptive = LevenbergMarquardt(initial=1e-2, objective=ELBO(4))
    for epsilon in (1e-2, 1e-4, 1e-6):
        for rate, damping in ((0.3, 1e-3), (0.3, adaptive), (30.0, adaptive), (30.0, 1e-3)):
            kind = "adapted" if damping is adaptive else "constant"
            yield (
                f"toy, epsilon {epsilon:g}, rate {rate:g}, {kind} damping",
                lambda e=epsilon, r=rate, d=damping: toy(e, r, d),
            )
    for sigma in (1.0, 1e2, 1e4):
        for start in (0.1, 1e-6, 1e3):
            for rate in (0.3, 30.0):
                yield (
                    f"logistic, sigma_0 {sigma:g}, start scale {start:g}, rate {rate:g}",
                    lambda s=sigma, b=start, r=rate: logistic(s, b, r, adaptive),
                )
    for rate in (None, 0.8):
        yield f"dead inputs, rate {rate or 'default'}", lambda r=rate: dead_inputs(r)
        for level in (1e-3, 2e4):
            yield (
                f"Poisson autoencoder, rates {level:g}, rate {rate or 'default'}",
                lambda lv=level, r=rate: counts(lv, r),
            )
    covariates, labels = logistic_data()
    logits = (jnp.asarray(covariates, jnp.float32), jnp.asarray(labels, jnp.float32))
    for name, guide in guides(regression):
        yield (
            f"SVI, logistic, {name}",
            lambda g=guide: automatic(regression, logits, g, 100),
        )
    for level in (1e-3, 3e4):
        y = jnp.asarray(np.random.default_rng(0).poisson(level, 50), jnp.float32)
        for name, guide in guides(rates):
            yield (
                f"SVI, Poisson rate {level:g}, {name}",
                lambda g=guide, y=y: automatic(rates, (y,), g, 50),
            )
    generator = np.random.default_rng(0)
    for epsilon in (1e-2, 1e-4, 1e-6):
        x = generator.normal(size=(50, 1)) + np.sqrt(epsilon) * generator.normal(size=(50, 2))
        y = x @ [1.0, -1.0] + generator.normal(size=50)
        arguments = (jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
        for name, guide in guides(line):
            lost = lost_by_mean_field(x) if isinstance(guide, AutoNormal) else 0.0
            yield (
                f"SVI, correlation 1 - {epsilon:g}, {name}",
                lambda g=guide, a=arguments, n=lost: automatic(line, a, g, 50, n),
            )


def main() -> int:
    """Run the cases whose name has all the given words; 1 if one is not well, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only cases with all of these in their names")
    options = parser.parse_args()
    found, bad = {}, 0
    for name, case in cases():
        if not all(word in name for word in options.words):
            continue
        ending = case()
        found[name] = {**ending._asdict(), "well": ending.well}
        bad += not ending.well
        word = "well" if ending.well else "NOT WELL"
        arrived = "arrived" if ending.gap <= ending.tolerance else f"gap {ending.gap:.3g}"
        print(f"{word}: {name}: {arrived}; {ending.words}", file=sys.stderr, flush=True)
    print(json.dumps({"cases": len(found), "not well": bad, "endings": found}, indent=1))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
