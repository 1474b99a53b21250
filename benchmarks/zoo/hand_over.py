"""Gradient evaluations that NUTS needs for a thousand effective draws, warm-up included."""

from typing import Any

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

from vpng.posterior import Posterior
from zoo.case import Case

CHAINS = 4
DRAWS = 500
WANTED = 1000
STEPS = ("num_steps",)


def own_warmup(case: Case) -> dict[str, Any]:
    """NumPyro as it comes, with a thousand steps of warm-up."""
    mcmc = MCMC(
        NUTS(case.run), num_warmup=1000, num_samples=DRAWS, num_chains=CHAINS,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    return _measured(mcmc, case.args)


def handed_over(posterior: Posterior) -> dict[str, Any]:
    """The same sampler from where the posterior is."""
    mcmc = posterior.nuts(num_samples=DRAWS, num_chains=CHAINS)
    return _measured(mcmc, posterior.density.args)


def _measured(mcmc: MCMC, args: tuple) -> dict[str, Any]:
    mcmc.warmup(jax.random.key(1), *args, extra_fields=STEPS, collect_warmup=True)
    warming = int(mcmc.get_extra_fields()["num_steps"].sum())
    mcmc.run(jax.random.key(2), *args, extra_fields=STEPS)
    sampling = int(mcmc.get_extra_fields()["num_steps"].sum())
    samples = jax.device_get(mcmc.get_samples(group_by_chain=True))
    flat = {
        name: np.asarray(v, np.float64).reshape(CHAINS, DRAWS, -1) for name, v in samples.items()
    }
    ess = min(float(np.nanmin(effective_sample_size(v))) for v in flat.values())
    return {
        "warmup_gradients": warming,
        "gradients_per_effective_draw": sampling / ess,
        "gradients": round(warming + WANTED * sampling / ess),
        "ess": round(ess),
        "means": {name: v.mean((0, 1)) for name, v in flat.items()},
    }
