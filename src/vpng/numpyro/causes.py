"""Why a run did not arrive, in words: looked for once, when it stops."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree
from numpyro.infer.svi import SVIState

from vpng.adaptive import AdaptiveState
from vpng.not_finite import NotFinite, joined
from vpng.numerics.trees import all_finite, is_floating
from vpng.numpyro.evaluation import Losses
from vpng.numpyro.problem import Call, TracedProblem, is_observation, log_density
from vpng.numpyro.steps import Carried
from vpng.problem import Parameters
from vpng.run.outcome import Outcome, StopReason

NUM_DRAWS = 20

NEARER = "Start the guide nearer to the posterior (a smaller init_scale, other init_params)"
ADVICE = {
    "parameter": "Leave optim out: the automatic rule has no learning rate",
    "draw": NEARER,
    "log q": NEARER,
    "log-prior": f"{NEARER} or use float64",
    "factor": f"{NEARER} or use float64",
    "log-likelihood": (
        f"{NEARER}, look for data outside the support of their distribution, or use float64"
    ),
    "gradient": (
        "Look for a function with a finite value and no finite derivative (sqrt, log, where), or "
        "use float64"
    ),
}
"""What to try, by the kind of what is not finite: the first word of its name."""


MIN_STEPS = 200
"""Before so many steps any noise is usual."""

FAR_NATS = 1.0
"""For each parameter; where the guide fits, the noise of a gradient is worth less."""


STUCK = (
    "The run stopped after {done} steps: something was not finite in the last of them, and no step "
    "could be taken. What is not finite: the {cause.parts}. The parameters returned are the last "
    "good ones. {cause.advice}."
)

DROPPED = (
    "{count} of {done} steps had a loss that was not finite and were dropped. What is not finite: "
    "the {cause.parts}. {cause.advice}."
)

DRAWN_IN = (
    "The loss at the start was not finite: the start was drawn in {count} times, locations and "
    "scales to half their size each time, until it was."
)

EXPLODED = "Use a smaller learning rate, or leave optim out: the automatic rule has none."


class Cause(NamedTuple):
    """Why no loss is finite.

    Attributes:
        parts: what is not finite, in words.
        advice: what to try.
    """

    parts: str
    advice: str


def cause_at(rng_key: PRNGKeyArray, losses: Losses, parameters: Parameters, call: Call) -> Cause:
    """What is not finite at a point: the first of all that is computed, the rest follows from it.

    Args:
        rng_key: of the draws that are looked at.
        losses: the objective, for its gradient.
        parameters: the point.
        call: what model and guide are called with, subsamples included.
    """
    problem = losses.problem
    keys = jax.random.split(rng_key, NUM_DRAWS)
    by_name = lambda point: {**point.variational, **point.model}
    looks: list[Callable[[], NotFinite]] = [
        lambda: _named("parameter", by_name(parameters)),
        lambda: jax.jit(jax.vmap(lambda key: _in_sites(key, problem, parameters, call)))(keys),
        lambda: _named("gradient", by_name(losses.mean(parameters)[1])),
    ]
    for look in looks:
        found = look()
        counts = np.atleast_2d(found.flags).sum(axis=0)
        bad = [(part, count) for part, count in zip(found.parts, counts, strict=True) if count]
        if bad:
            part, count = bad[0]
            drawn = f" in {count} of {NUM_DRAWS} draws" if np.ndim(found.flags) == 2 else ""
            outside = _outside_support(part, keys[0], problem, parameters, call)
            if outside:
                return Cause(part + outside, "Correct these data, or choose another distribution")
            kind = part.split(" of ")[0]
            return Cause(part + drawn, ADVICE[kind])
    return Cause(
        f"loss, though none of its parts in {NUM_DRAWS} draws, or the metric",
        f"{NEARER}, choose another metric (fisher=Predictive(Sampled())) or use float64",
    )


def remarks_on(
    outcome: Outcome[Carried], cause: Callable[[SVIState], Cause], problem: TracedProblem
) -> list[str]:
    """What a user should know of how a run went, in words.

    Args:
        outcome: of the run.
        cause: finds what is not finite at a state.
        problem: of the run.
    """
    reached, reason = outcome.reached.state, outcome.stop_reason
    done, found = len(outcome.history.step_losses), []
    if reason is StopReason.NOT_FINITE:
        found.append(STUCK.format(done=done, cause=cause(reached)))
    elif outcome.rejected:
        first = _drawn_in(outcome)
        if first:
            found.append(DRAWN_IN.format(count=first))
        if outcome.rejected > first:
            count = outcome.rejected - first
            found.append(DROPPED.format(count=count, done=done, cause=cause(reached)))
    if outcome.explosions:
        found.append(f"{outcome.explosions[0].upper()}{outcome.explosions[1:]}. {EXPLODED}")
    if reason not in (StopReason.NOT_FINITE, StopReason.INTERRUPTED):
        found.append(far_off(reached.optim_state, problem))
    return [remark for remark in found if remark]


def _drawn_in(outcome: Outcome[Carried]) -> int:
    """Steps before the first loss that was finite, after which the automatic rule began."""
    state = outcome.reached.state.optim_state
    finite = np.isfinite(outcome.history.step_losses)
    begun = isinstance(state, AdaptiveState) and bool(state.begun) and finite.any()
    return int(np.argmax(finite)) if begun else 0


def far_off(state: PyTree, problem: TracedProblem) -> str:
    """That a run of the automatic rule seems to have ended far from the posterior, if it does.

    Far off, the draws of the guide disagree about where to go by more than the rule can average
    away. A minibatch makes noise by itself, so that it does not tell.
    """
    if not isinstance(state, AdaptiveState):
        return ""
    size = sum(leaf.size for leaf in jax.tree.leaves(state.accepted))
    nats = float(np.sum(np.asarray(state.signal.noise, np.float64)))
    unknown = nats >= np.finfo(np.float32).max
    if unknown or problem.subsampled or int(state.step) < MIN_STEPS or nats < FAR_NATS * size:
        return ""
    return (
        f"After {int(state.step)} steps the noise of the gradient is still worth {nats:.2g} nats, "
        f"more than one for each of the {size} parameters: the run ended far from the posterior, "
        f"or the posterior has heavier tails than the guide, and only short steps are possible. "
        f"{NEARER}, or use more particles or steps."
    )


def _in_sites(
    rng_key: PRNGKeyArray, problem: TracedProblem, parameters: Parameters, call: Call
) -> NotFinite:
    """One draw: its values, and the log-densities of guide, prior and likelihood."""
    guide = problem.guide_trace(parameters.variational, rng_key, call)
    drawn = {name: site for name, site in guide.items() if site["type"] == "sample"}
    latent = {name: site["value"] for name, site in drawn.items()}
    model = problem.model_trace(parameters.model, latent, call)
    sites = {name: site for name, site in model.items() if site["type"] == "sample"}
    own_kind = lambda name: "log-prior" if name in latent else "factor"
    kinds = {
        name: "log-likelihood" if is_observation(site) else own_kind(name)
        for name, site in sites.items()
    }
    densities = [
        _named(kind, {name: log_density(sites[name]) for name in sites if kinds[name] == kind})
        for kind in ("log-prior", "factor", "log-likelihood")
    ]
    log_q = {name: log_density(site) for name, site in drawn.items()}
    return joined([_named("draw", latent), _named("log q", log_q), *densities])


def _named(kind: str, trees: dict[str, Any]) -> NotFinite:
    def bad(tree: Any) -> Bool[Array, ""]:
        flags = [all_finite(leaf) for leaf in jax.tree.leaves(tree) if is_floating(leaf)]
        return ~jnp.all(jnp.stack([jnp.asarray(True), *flags]))

    return NotFinite.of([f"{kind} of {name!r}" for name in trees], list(map(bad, trees.values())))


def _outside_support(
    part: str, rng_key: PRNGKeyArray, problem: TracedProblem, parameters: Parameters, call: Call
) -> str:
    """How many of an observed site's values its distribution does not allow, in words."""
    if not part.startswith("log-likelihood"):
        return ""
    with numpyro.validation_enabled(False):
        latent = problem.latent(parameters.variational, rng_key, call)
        sites = problem.model_trace(parameters.model, latent, call)
        (site,) = [site for name, site in sites.items() if part == f"log-likelihood of {name!r}"]
        allowed = np.asarray(site["fn"].support(site["value"]))
    count = f"{allowed.size - allowed.sum()} of {allowed.size}"
    return "" if allowed.all() else f", {count} values of which are outside its support"
