"""Runs over batches from outside."""

import itertools
import logging

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from conjugate_for_tests import COVARIATES, NOISE, TARGETS, posterior
from numpyro.infer import RenyiELBO, Trace_ELBO, autoguide

from vpng import Checkpoints
from vpng.errors import InputError
from vpng.numpyro import SVI, BatchesFrom, Epochs

KEY = jax.random.key(0)
ROWS = [slice(0, 4), slice(4, 6)]
"""Four of the six data, and two."""


def model(x, y, noise=NOISE):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, noise), obs=y)


def with_a_plate_of_all(x, y, noise=NOISE):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("rows", 6, subsample_size=len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, noise), obs=y)


def shuffled(epoch):
    order = np.random.default_rng(epoch).permutation(6)
    return [(COVARIATES[order[rows]], TARGETS[order[rows]]) for rows in ROWS]


@pytest.fixture(scope="module")
def svi():
    return SVI(model, autoguide.AutoNormal(model), loss=Trace_ELBO(num_particles=4))


def test_the_answer_is_that_of_all_data(svi, capsys):
    result = svi.run(KEY, Epochs(100), BatchesFrom(shuffled))
    mean, precision = posterior()
    error = np.asarray(result.params["w_auto_loc"]) - mean
    # In nats: along the ridge of the posterior a wrong mean costs little, and is found last.
    assert 0.5 * error @ precision @ error < 0.1
    scale = 1.0 / np.sqrt(np.diag(precision))
    np.testing.assert_allclose(result.params["w_auto_scale"], scale, rtol=0.2)
    assert result.losses.shape == (200,)
    assert svi.problem.num_data == 6
    shown = capsys.readouterr().err
    assert "100/100" in shown
    assert "epoch" in shown


def test_a_run_is_a_loop_over_updates():
    """With the plate of all data in the model, the run counts nothing that the loop does not."""
    batches = [(COVARIATES[i : i + 3], TARGETS[i : i + 3]) for i in (0, 3)]
    own = SVI(with_a_plate_of_all, autoguide.AutoDelta(with_a_plate_of_all), loss=Trace_ELBO(2))
    result = own.run(KEY, 5, BatchesFrom(batches), 2 * NOISE, progress_bar=False)
    state, update, losses = own.init(KEY, *batches[0], 2 * NOISE), jax.jit(own.update), []
    for batch in itertools.islice(itertools.cycle(batches), 5):
        state, loss = update(state, *batch, 2 * NOISE)
        losses.append(loss)
    np.testing.assert_allclose(result.losses, losses, rtol=1e-5)


def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits(svi, tmp_path):
    batches = BatchesFrom(shuffled)
    whole = svi.run(KEY, Epochs(70), batches, progress_bar=False)
    kept = Checkpoints(tmp_path / "kept")
    svi.run(KEY, Epochs(40), batches, checkpoints=kept, progress_bar=False)
    again = svi.run(KEY, Epochs(70), batches, checkpoints=kept, resume=True, progress_bar=False)
    np.testing.assert_array_equal(again.losses, whole.losses)


def test_other_batches_and_lengths_need_no_second_program(caplog):
    svi = SVI(with_a_plate_of_all, autoguide.AutoDelta(with_a_plate_of_all), loss=Trace_ELBO(2))

    def compiled(epochs, batches):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            svi.run(KEY, epochs, batches, progress_bar=False)
        finished = [text for text in caplog.messages if text.startswith("Finished XLA compilation")]
        return [text for text in finished if "steps_of_svi" in text]

    assert compiled(Epochs(1), BatchesFrom(shuffled))
    assert not compiled(Epochs(3), BatchesFrom(lambda epoch: shuffled(epoch + 1)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda svi: svi.run(KEY, Epochs(2), COVARIATES, TARGETS), "num_steps.*BatchesFrom"),
        (
            lambda svi: SVI(model, svi.guide, loss=RenyiELBO()).run(KEY, 2, BatchesFrom(shuffled)),
            "RenyiELBO wants batches.*drop_short=True",
        ),
        (
            lambda svi: SVI(model, svi.guide, mesh=jax.make_mesh((1,), ("data",))).run(
                KEY, 2, BatchesFrom(shuffled)
            ),
            "mesh",
        ),
        (
            lambda svi: jax.jit(lambda key: svi.run(key, 2, BatchesFrom(shuffled)).losses)(KEY),
            "nothing can be loaded",
        ),
    ],
    ids=["no batches", "loss", "mesh", "jit"],
)
def test_what_cannot_be_is_refused(svi, call, message):
    with pytest.raises(InputError, match=message):
        call(svi)
