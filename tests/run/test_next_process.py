"""Programs are the same from process to process, so that JAX's own cache on disk finds them."""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json
import time

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoMultivariateNormal

from vpng.numpyro import SVI

counted = {"cache_hits": 0, "cache_misses": 0}


def count(event, **about):
    name = event.rsplit("/", 1)[-1]
    if name in counted:
        counted[name] += 1


jax.monitoring.register_event_listener(count)


def schools(sigma, y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", sigma.shape[0]):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


data = jnp.asarray([15.0, 10.0, 16.0]), jnp.asarray([28.0, 8.0, -3.0])
svi = SVI(schools, AutoMultivariateNormal(schools))
result = svi.run(jax.random.key(0), 20, *data, progress_bar=False)
print(json.dumps({**counted, "losses": [float(loss) for loss in result.losses]}))
"""


def in_a_process(cache, seed):
    env = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        # The order of sets is another one in every process.
        "PYTHONHASHSEED": seed,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.endurance
def test_the_next_process_finds_every_program(tmp_path):
    first, second = in_a_process(tmp_path, "1"), in_a_process(tmp_path, "2")
    assert first["cache_misses"] >= 4
    assert second["cache_misses"] == 0
    assert second["cache_hits"] == first["cache_misses"] + first["cache_hits"]
    assert second["losses"] == first["losses"]
