"""How good are the recommendations? Ours beside popularity, ALS and non-negative factorisation.

Users are split into train, validation and test. A fifth of the items of every validation and test
user is hidden; each method sees the rest of the row, ranks what the user has not seen, and is
scored by where the hidden items come: NDCG@10 and recall@20. Every method has a grid, those that
are quick to fit a larger one; its best point by the validation users' NDCG@10 is scored on the test
users. All are fitted to the same training rows, the paper's matrix, on one thread. One JSON object
is printed.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import product

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from vpng.paper.datasets import EDITIONS, Shape, load_movielens, rating_matrix, synthetic_ratings

SYNTHETIC = Shape(num_users=8_000, num_items=500, num_ratings=320_000)
Scorer = Callable[[np.ndarray], np.ndarray]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def load(name: str) -> np.ndarray:
    if name == "synthetic":
        return rating_matrix(synthetic_ratings(SYNTHETIC)).counts
    return rating_matrix(load_movielens(name), min_ratings=EDITIONS[name].min_ratings).counts


def hide(rng: np.random.Generator, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the methods see, and which items are hidden: a fifth of each row, at least one."""
    seen, hidden = rows.copy(), np.zeros(rows.shape, bool)
    for user, row in enumerate(rows):
        items = rng.permutation(np.flatnonzero(row))
        hidden[user, items[: max(1, len(items) // 5)]] = True
    seen[hidden] = 0
    return seen, hidden


def quality(scores: np.ndarray, seen: np.ndarray, hidden: np.ndarray) -> dict[str, float]:
    """NDCG@10 and recall@20, averaged over users."""
    scores = np.where(seen > 0, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :20]
    hits = np.take_along_axis(hidden, order, axis=1)
    sizes = hidden.sum(axis=1)
    discounts = 1.0 / np.log2(np.arange(2, 12))
    ideal = np.array([discounts[: min(size, 10)].sum() for size in sizes])
    return {
        "ndcg@10": float(np.mean(hits[:, :10] @ discounts / ideal)),
        "recall@20": float(np.mean(hits.sum(axis=1) / np.minimum(sizes, 20))),
    }


def popularity(train: np.ndarray, seed: int) -> Scorer:
    counts = (train > 0).sum(axis=0)
    return lambda rows: np.broadcast_to(counts, rows.shape)


def als(factors: int, regularisation: float, alpha: float):
    def fit(train: np.ndarray, seed: int) -> Scorer:
        from implicit.als import AlternatingLeastSquares

        model = AlternatingLeastSquares(
            factors, regularization=regularisation, alpha=alpha, iterations=20, random_state=seed
        )
        model.fit(sparse.csr_matrix(train.astype(np.float32)), show_progress=False)

        def score(rows: np.ndarray) -> np.ndarray:
            items = sparse.csr_matrix(rows.astype(np.float32))
            users = model.recalculate_user(np.arange(len(rows)), items)
            return np.asarray(users) @ np.asarray(model.item_factors).T

        return score

    return fit


def nmf(components: int, penalty: float):
    def fit(train: np.ndarray, seed: int) -> Scorer:
        from sklearn.decomposition import NMF

        model = NMF(
            components,
            solver="mu",
            beta_loss="kullback-leibler",
            init="nndsvda",
            alpha_W=penalty,
            max_iter=200,
            random_state=seed,
        )
        model.fit(sparse.csr_matrix(train.astype(np.float32)))
        components_ = model.components_
        return lambda rows: (
            model.transform(sparse.csr_matrix(rows.astype(np.float32))) @ components_
        )

    return fit


def ours(**settings):
    def fit(train: np.ndarray, seed: int) -> Scorer:
        from vpng.models import PoissonFactorization

        model = PoissonFactorization(refinement=15, random_state=seed, **settings)
        return model.fit(train).predict

    return fit


def contenders(small: bool) -> dict[str, dict[str, Callable]]:
    """Methods by name, each a grid of fits by label, around what is best for data of that size."""
    if small:
        factors, regularisations, components = (32, 64, 128), (1.0, 3.0, 10.0), (20, 40, 80)
        batch_size, decays, most, lengths = 64, (0.003, 0.01), 100, (25, 50)
    else:
        factors, regularisations, components = (16, 32, 64), (10.0, 30.0, 100.0), (10, 20, 40)
        batch_size, decays, most, lengths = 500, (0.003, 0.01, 0.03), 40, (20,)
    endings = {
        "stopped early": {"max_epochs": most},
        **{
            f"{count} epochs, all rows": {"max_epochs": count, "validation_fraction": 0.0}
            for count in lengths
        },
    }
    grid = {
        "popularity": {"": popularity},
        "implicit ALS": {
            f"factors {k}, regularisation {r:g}, alpha {a:g}": als(k, r, a)
            for k, r, a in product(factors, regularisations, (0.1, 0.3, 1.0))
        },
        "NMF with KL loss": {
            f"components {k}, penalty {p:g}": nmf(k, p)
            for k, p in product(components, (1e-3, 1e-2, 1e-1))
        },
        "PoissonFactorization": {
            f"dropout {d:g}, weight decay {w:g}, {label}": ours(
                dropout=d, weight_decay=w, batch_size=batch_size, **stop
            )
            for d, w, (label, stop) in product((0.3, 0.5), decays, endings.items())
        },
    }
    try:
        import implicit  # noqa: F401
    except Exception as error:  # any failure of an optional peer is a reason, not a crash
        grid["implicit ALS"] = {}
        say(f"implicit ALS skipped: {type(error).__name__}: {error}")
    return grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="ml-latest-small")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--only", default=None, help="methods, comma-separated")
    options = parser.parse_args()
    counts = load(options.data)
    counts = counts[(counts > 0).sum(axis=1) >= 5]
    report: dict = {"data": options.data, "users": len(counts), "items": counts.shape[1]}
    report["splits"] = []
    for split in range(options.splits):
        rng = np.random.default_rng(split)
        order = rng.permutation(len(counts))
        size = max(len(counts) // 10, min(len(counts) // 5, 120))
        parts = order[:size], order[size : 2 * size], order[2 * size :]
        test, validation, train = (counts[part] for part in parts)
        asked = {"validation": hide(rng, validation), "test": hide(rng, test)}
        found = {}
        for name, points in contenders(len(train) < 5000).items():
            if not points or (options.only and name not in options.only.split(",")):
                continue
            tried = []
            for label, fit in points.items():
                began = time.process_time()
                with threadpool_limits(1):
                    score = fit(train, split)
                    seconds = time.process_time() - began
                    scores = {
                        part: quality(score(seen), seen, hidden)
                        for part, (seen, hidden) in asked.items()
                    }
                tried.append({"point": label, "seconds": seconds, **scores})
                say(f"split {split}, {name}, {label}: {scores} in {seconds:.1f} s")
            best = max(tried, key=lambda entry: entry["validation"]["ndcg@10"])
            found[name] = {"chosen": best, "grid": tried}
        report["splits"].append(found)
    report["mean"] = {
        name: {
            metric: float(
                np.mean([found[name]["chosen"]["test"][metric] for found in report["splits"]])
            )
            for metric in ("ndcg@10", "recall@20")
        }
        for name in report["splits"][0]
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
