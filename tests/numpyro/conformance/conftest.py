"""One fixture, three classes: NumPyro's SVI, ours as it comes, and ours with an optim."""

import jax.numpy as jnp
import numpyro
import pytest
from numpyro import infer

from vpng.numpyro import SVI


def theirs(model, guide, loss, optim=None, **options):
    return infer.SVI(model, guide, optim or numpyro.optim.Adam(0.05), loss, **options)


def automatic(model, guide, loss, optim=None, **options):
    return SVI(model, guide, loss=loss, **options)


def with_optim(model, guide, loss, optim=None, **options):
    return SVI(model, guide, optim or numpyro.optim.Adam(0.05), loss, **options)


@pytest.fixture(params=[theirs, automatic, with_optim], ids=lambda make: make.__name__)
def make_svi(request):
    """Makes an SVI of a model, a guide and a loss, and an optim if the promise is about one."""
    return request.param


RARELY = pytest.param(with_optim, marks=pytest.mark.exhaustive)


@pytest.fixture(params=[theirs, automatic, RARELY], ids=lambda make: make.__name__)
def make_usual(request):
    """The same; with an optim only in the exhaustive run, where what is shown is not about it."""
    return request.param


@pytest.fixture(params=[automatic, with_optim], ids=lambda make: make.__name__)
def make_ours(request):
    """Ours alone, for what NumPyro does not do."""
    return request.param


@pytest.fixture(params=[automatic, RARELY], ids=lambda make: make.__name__)
def make_ours_usual(request):
    """Ours alone; with an optim only in the exhaustive run."""
    return request.param


@pytest.fixture
def y():
    return jnp.array([0.3, 1.2, 0.7, 1.5, 0.1])
