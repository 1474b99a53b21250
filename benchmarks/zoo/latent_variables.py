"""Latents of persons, items and rows."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

from zoo.case import Case, normal_guides

NUM_FACTORS = 2


def item_response(answers: jax.Array) -> None:
    """Two parameters for every item: its difficulty and how well it discriminates."""
    persons, items = answers.shape
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("persons", persons):
        ability = numpyro.sample("ability", dist.Normal(0.0, 1.0))
    with numpyro.plate("items", items):
        difficulty = numpyro.sample("difficulty", dist.Normal(0.0, spread))
        discrimination = numpyro.sample("discrimination", dist.LogNormal(0.0, 0.5))
    logits = discrimination * (ability[:, None] - difficulty)
    numpyro.sample("answer", dist.Bernoulli(logits=logits).to_event(2), obs=answers)


def factor_analysis(rows: jax.Array) -> None:
    num_rows, num_columns = rows.shape
    weights = dist.Normal(0.0, 1.0).expand([num_columns, NUM_FACTORS]).to_event(2)
    loadings = numpyro.sample("loadings", weights)
    noise = numpyro.sample("noise", dist.HalfNormal(1.0).expand([num_columns]).to_event(1))
    with numpyro.plate("rows", num_rows):
        prior = dist.Normal(0.0, 1.0).expand([NUM_FACTORS]).to_event(1)
        factors = numpyro.sample("factors", prior)
        numpyro.sample("row", dist.Normal(factors @ loadings.T, noise).to_event(1), obs=rows)


def cases() -> tuple[Case, ...]:
    rng = np.random.default_rng(3)
    ability, difficulty = rng.normal(size=60), rng.normal(size=20)
    discrimination = np.exp(0.5 * rng.normal(size=20))
    logits = discrimination * (ability[:, None] - difficulty)
    answers = (rng.uniform(size=(60, 20)) < 1 / (1 + np.exp(-logits))).astype(int)
    loadings, factors = rng.normal(size=(10, NUM_FACTORS)), rng.normal(size=(100, NUM_FACTORS))
    rows = factors @ loadings.T + 0.5 * rng.normal(size=(100, 10))
    return (
        *normal_guides("item response", item_response, (answers,), full=False),
        *normal_guides("factor analysis", factor_analysis, (rows,), full=False),
    )
