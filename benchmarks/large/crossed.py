"""Two crossed plates: persons and items, users and films."""

from collections.abc import Iterator

import numpy as np
import numpyro
import numpyro.distributions as dist

from large.groups import make
from zoo.case import Case


def cases() -> Iterator[Case]:
    """All of them."""
    yield make("item response", item_response, item_response_data(1000, 100))
    yield make("crossed ratings", ratings, ratings_data(2000, 300))


def item_response(person, item, y, num_persons=1000, num_items=100):
    with numpyro.plate("items", num_items):
        difficulty = numpyro.sample("difficulty", dist.Normal(0, 2))
        discrimination = numpyro.sample("discrimination", dist.LogNormal(0, 0.5))
    with numpyro.plate("persons", num_persons):
        ability = numpyro.sample("ability", dist.Normal(0, 1))
    with numpyro.plate("answers", y.shape[0]):
        logits = discrimination[item] * (ability[person] - difficulty[item])
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def item_response_data(persons, items):
    rng = np.random.default_rng(6)
    person, item = np.divmod(np.arange(persons * items), items)
    ability, difficulty = rng.normal(size=persons), rng.normal(size=items)
    discrimination = np.exp(0.3 * rng.normal(size=items))
    logits = discrimination[item] * (ability[person] - difficulty[item])
    y = rng.random(person.size) < 1 / (1 + np.exp(-logits))
    return person.astype(np.int32), item.astype(np.int32), y.astype(np.int32)


def ratings(user, film, y, num_users=2000, num_films=300):
    level = numpyro.sample("level", dist.Normal(3, 2))
    of_users = numpyro.sample("of_users", dist.HalfNormal(1))
    of_films = numpyro.sample("of_films", dist.HalfNormal(1))
    noise = numpyro.sample("noise", dist.HalfNormal(1))
    with numpyro.plate("users", num_users):
        a = numpyro.sample("a", dist.Normal(0, of_users))
    with numpyro.plate("films", num_films):
        b = numpyro.sample("b", dist.Normal(0, of_films))
    with numpyro.plate("ratings", y.shape[0]):
        numpyro.sample("y", dist.Normal(level + a[user] + b[film], noise), obs=y)


def ratings_data(users, films):
    rng = np.random.default_rng(7)
    user, film = rng.integers(0, users, 30_000), rng.integers(0, films, 30_000)
    a, b = 0.5 * rng.normal(size=users), 0.7 * rng.normal(size=films)
    y = 3.5 + a[user] + b[film] + 0.8 * rng.normal(size=30_000)
    return user.astype(np.int32), film.astype(np.int32), y.astype(np.float32)
