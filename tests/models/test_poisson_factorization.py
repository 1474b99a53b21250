"""The recommender: fitting, folding in, recommending, saving."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from vpng.errors import InputError
from vpng.models import PoissonFactorization
from vpng.paper.datasets import Ratings

RNG = np.random.default_rng(0)
GROUP = np.arange(60) % 2
# Two tastes: the first six items or the last six.
TASTES = np.where(GROUP[:, None] == (np.arange(12) >= 6), 3.0, 0.1)
COUNTS = RNG.poisson(TASTES).astype(np.uint8)
SETTINGS = {
    "n_components": 2,
    "hidden": (8,),
    "batch_size": 20,
    "max_epochs": 60,
    "patience": 60,
    "dropout": 0.2,
    "learning_rate": 0.02,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def model():
    return PoissonFactorization(**SETTINGS).fit(COUNTS)


def test_tastes_are_found(model):
    """A new user who likes items of one group is recommended the rest of that group first."""
    rows = np.zeros((2, 12), np.uint8)
    rows[0, [0, 1, 2]] = 4
    rows[1, [9, 10, 11]] = 4
    found = model.recommend(rows, 3)
    assert set(found.items[0]) == {3, 4, 5}
    assert set(found.items[1]) == {6, 7, 8}
    assert (np.diff(found.scores, axis=1) <= 0).all()


def test_seen_items_may_be_included(model):
    rows = np.zeros((1, 12), np.uint8)
    rows[0, :6] = 4
    seen = model.recommend(rows, 12, exclude_seen=False)
    assert sorted(seen.items[0]) == list(range(12))
    unseen = model.recommend(rows, 12)
    assert sorted(unseen.items[0][:6]) == list(range(6, 12))
    assert (unseen.items[0][6:] == -1).all()


def test_similar_items_share_a_taste(model):
    found = model.similar_items(0, 5)
    assert set(found.items[0]) == {1, 2, 3, 4, 5}
    assert found.scores.max() <= 1.0 + 1e-6


def test_predictions_are_rates(model):
    rates = model.predict(COUNTS)
    assert rates.shape == COUNTS.shape
    assert (rates > 0).all()
    means = [rates[g == GROUP].mean(axis=0) for g in (0, 1)]
    assert (means[0][:6] > 3 * means[0][6:].max()).all()
    assert (means[1][6:] > 3 * means[1][:6].max()).all()


def test_refined_rates_are_more_probable(model):
    """log p(R, beta) at the refined beta is never below that at the network's."""
    theta = model.components_.astype(float)
    refined = clone(model)
    refined.set_params(refinement=20)
    vars(refined).update({name: value for name, value in vars(model).items() if name[-1] == "_"})
    found = []
    for rates in (model.predict(COUNTS), refined.predict(COUNTS)):
        outputs = np.log(np.expm1(rates.astype(float)))
        beta = np.linalg.lstsq(theta.T, outputs.T, rcond=None)[0].T
        likelihood = (COUNTS * np.log(rates) - rates).sum(axis=1)
        found.append(likelihood - 0.5 * (beta**2).sum(axis=1))
    assert (found[1] >= found[0] - 1e-3).all()
    assert found[1].mean() > found[0].mean() + 1e-3


def test_the_best_epoch_is_kept(model):
    elbos = np.array(model.history_["validation_elbo"])
    assert len(elbos) == model.n_iter_
    order = np.random.RandomState(0).randint(2**31 - 1)
    held_out = COUNTS[np.random.default_rng(order).permutation(60)[:6]]
    # The same users, other draws of eps.
    assert model.score(held_out) == pytest.approx(elbos.max(), abs=1.0)
    assert model.score(COUNTS) > model.score(COUNTS[:, ::-1])


def test_sparse_rows_are_the_same_rows(model):
    packed = sparse.csr_matrix(COUNTS)
    np.testing.assert_array_equal(model.transform(packed), model.transform(COUNTS))
    # In place of scikit-learn's check_estimator_sparse_array and check_estimator_sparse_matrix,
    # which do not apply: they want one number a row from `predict`, and ours are rows of rates.
    for kind in ("csr", "csc", "coo", "lil", "dok", "dia", "bsr"):
        for made in (sparse.csr_array, sparse.csr_matrix):
            found = model.predict(made(COUNTS).asformat(kind))
            np.testing.assert_array_equal(found, model.predict(COUNTS))
    assert model.transform(COUNTS).shape == (60, 2)
    assert list(model.get_feature_names_out()) == [
        "poissonfactorization0",
        "poissonfactorization1",
    ]


def test_a_saved_model_is_the_same_model(model, tmp_path):
    loaded = PoissonFactorization.load(model.save(tmp_path / "model.vpng"))
    np.testing.assert_array_equal(loaded.predict(COUNTS), model.predict(COUNTS))
    assert loaded.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        PoissonFactorization().save(tmp_path / "other")
    with pytest.raises(InputError, match="saved by vpng"):
        PoissonFactorization.load(__file__)


def test_ratings_bring_their_ids():
    users, items = np.nonzero(COUNTS)
    ratings = Ratings(users + 1, 100 - items, np.minimum(COUNTS[users, items] / 2 + 0.5, 5.0))
    quick = PoissonFactorization(**{**SETTINGS, "max_epochs": 1}).fit_ratings(ratings)
    assert quick.item_ids_.tolist() == list(range(89, 101))
    rows, ids = quick.rows_of(Ratings(np.array([7, 7]), np.array([100, 5]), np.array([5.0, 1.0])))
    # Item 5 is unknown; item 100 is the last column.
    assert ids.tolist() == [7]
    assert rows.tolist() == [[0] * 11 + [9]]
    first = quick.parameters_
    quick.partial_fit(np.zeros((3, 12)) + COUNTS[:3])
    assert quick.item_ids_.tolist() == list(range(89, 101))
    assert (np.asarray(first.model) != quick.components_).any()


def test_the_same_seed_gives_the_same_model(model):
    again = clone(model).fit(sparse.csr_array(COUNTS))
    np.testing.assert_array_equal(again.components_, model.components_)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "n_components"),
        ({"dropout": 1.0}, "dropout"),
        ({"refinement": -1}, "refinement"),
        ({"refinement": 1.5}, "refinement"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"weight_decay": -1.0}, "weight_decay"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        PoissonFactorization(**settings).fit(COUNTS)


def test_bad_rows_are_refused(model):
    with pytest.raises(ValueError, match="Negative values"):
        model.predict(-np.ones((1, 12)))
    with pytest.raises(ValueError, match="features"):
        model.predict(np.ones((1, 11)))
    with pytest.raises(ValueError, match="NaN"):
        model.predict(np.full((1, 12), np.nan))
    with pytest.raises(InputError, match="n: expected at most the 12 items"):
        model.recommend(COUNTS[:1], 13)
    with pytest.raises(InputError, match="item, n"):
        model.similar_items(12)
