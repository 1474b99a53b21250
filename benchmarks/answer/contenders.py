"""The contenders: each from the call that a user makes to the answer."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import infer, optim
from numpyro.infer import MCMC, NUTS, Trace_ELBO

from answer.fixed_draws import fit, log_density
from answer.stopwatch import Stopwatch
from vpng.numpyro import SVI
from zoo.case import Case

RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
ADAM_STEPS, MOST_ADAM_STEPS, LOOK = 10_000, 20_000, 500
NUM_SAMPLES = 4000
"""Draws for an ELBO that counts, off the clock and the same for all."""

Found = dict[str, Any]


def vpng(case: Case, key: jax.Array, target: float | None) -> Found:
    """`SVI(model, guide).run(key, "auto", ...)` and nothing else."""
    guide = case.make_guide()
    with Stopwatch() as watch:
        svi = SVI(case.run, guide)
        state = svi.init(key, *case.args)
        watch.mark("init")
        result = svi.run(key, "auto", *case.args, progress_bar=False, init_state=state)
        jax.block_until_ready(result.params)
    return {
        **watch.report(),
        "steps": len(result.losses),
        "elbo": _elbo(case, guide, result.params),
    }


def vpng_again(case: Case, key: jax.Array, target: float | None) -> Found:
    """The second run in the same process: another key, the same shapes."""
    guide = case.make_guide()
    svi = SVI(case.run, guide)
    svi.run(key, "auto", *case.args, progress_bar=False)
    with Stopwatch() as watch:
        result = svi.run(jax.random.fold_in(key, 1), "auto", *case.args, progress_bar=False)
        jax.block_until_ready(result.params)
    return {
        **watch.report(),
        "steps": len(result.losses),
        "elbo": _elbo(case, guide, result.params),
    }


def adam(case: Case, key: jax.Array, target: float | None) -> Found:
    """NumPyro's SVI as people use it: Adam, 0.01, 10,000 steps."""
    guide = case.make_guide()
    with Stopwatch() as watch:
        svi = infer.SVI(case.run, guide, optim.Adam(0.01), Trace_ELBO())
        state = svi.init(key, *case.args)
        watch.mark("init")
        result = svi.run(key, ADAM_STEPS, *case.args, progress_bar=False, init_state=state)
        jax.block_until_ready(result.params)
    return {**watch.report(), "steps": ADAM_STEPS, "elbo": _elbo(case, guide, result.params)}


def best_adam(case: Case, key: jax.Array, target: float | None) -> Found:
    """The rate that comes first within a nat of the target, chosen afterwards; stops there."""
    if target is None:
        raise SystemExit("best_adam needs the ELBO of the others")
    return min((_until(case, key, target, rate) for rate in RATES), key=_rank)


def _rank(found: Found) -> tuple[bool, float]:
    return not found["arrived"], found["seconds"] if found["arrived"] else -found["elbo"]


def _until(case: Case, key: jax.Array, target: float, rate: float) -> Found:
    jax.clear_caches()
    guide, steps, elbo, looking = case.make_guide(), 0, -math.inf, 0.0
    with Stopwatch() as watch:
        svi = infer.SVI(case.run, guide, optim.Adam(rate), Trace_ELBO())
        state = svi.init(key, *case.args)
        watch.mark("init")

        @jax.jit
        def several(state: Any) -> Any:
            step = lambda _, state: svi.update(state, *case.args)[0]
            return jax.lax.fori_loop(0, LOOK, step, state)

        while steps < MOST_ADAM_STEPS and elbo < target - 1.0:
            state = jax.block_until_ready(several(state))
            steps += LOOK
            with Stopwatch() as look:
                elbo = _elbo(case, guide, svi.get_params(state))
            looking += look.seconds
    report = watch.report()
    # A look at the ELBO is off the clock.
    seconds = report["seconds"] - looking
    arrived = elbo >= target - 1.0
    own = {"seconds": seconds, "init": report["init"], "programs": report["programs"]}
    return {**own, "steps": steps, "rate": rate, "arrived": arrived, "elbo": elbo}


def nuts(case: Case, key: jax.Array, target: float | None) -> Found:
    """NUTS with 500 steps of adaptation and 1,000 draws, one chain."""
    with Stopwatch() as watch:
        sampler = MCMC(NUTS(case.run), num_warmup=500, num_samples=1000, progress_bar=False)
        sampler.run(key, *case.args)
        jax.block_until_ready(sampler.get_samples())
    return {**watch.report(), "steps": 1500, "elbo": None}


def deterministic_advi(case: Case, key: jax.Array, target: float | None) -> Found:
    """Fixed draws, mean field, Newton with conjugate gradients."""
    with Stopwatch() as watch:
        found = fit(case.run, case.args, key)
    mean, scale = jnp.asarray(found["mean"]), jnp.asarray(found["scale"])
    noise = jax.random.normal(jax.random.key(1), (NUM_SAMPLES, mean.size))
    densities = jax.jit(jax.vmap(found["density"]))(mean + scale * noise)
    entropy = jnp.sum(jnp.log(scale)) + 0.5 * mean.size * (1 + math.log(2 * math.pi))
    return {**watch.report(), "steps": None, "elbo": float(jnp.mean(densities) + entropy)}


def pathfinder(case: Case, key: jax.Array, target: float | None) -> Found:
    """BlackJAX's Pathfinder with its defaults."""
    from blackjax.vi import pathfinder as blackjax_pathfinder

    with Stopwatch() as watch:
        density, start = log_density(case.run, case.args, key)
        watch.mark("init")
        state, _ = blackjax_pathfinder.approximate(key, density, start)
        jax.block_until_ready(state)
    draws, log_q = blackjax_pathfinder.sample(jax.random.key(1), state, NUM_SAMPLES)
    elbo = float(jnp.mean(jax.vmap(density)(draws) - log_q))
    return {**watch.report(), "steps": None, "elbo": elbo if np.isfinite(elbo) else None}


def _elbo(case: Case, guide: Callable, params: dict[str, Any]) -> float:
    loss = Trace_ELBO(num_particles=NUM_SAMPLES)
    evaluate = jax.jit(
        lambda params: loss.loss(jax.random.key(1), params, case.run, guide, *case.args)
    )
    return -float(evaluate(params))


CONTENDERS: dict[str, Callable[[Case, jax.Array, float | None], Found]] = {
    "vpng": vpng,
    "adam": adam,
    "nuts": nuts,
    "deterministic_advi": deterministic_advi,
    "pathfinder": pathfinder,
    "vpng_again": vpng_again,
    "best_adam": best_adam,
}
"""In the order in which they run: the last needs to know what the others found."""
