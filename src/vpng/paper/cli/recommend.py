"""`vpng recommend`: what a user may like, from a saved model and a file of ratings."""

from pathlib import Path

import numpy as np
from rich.table import Table

from vpng.errors import expected
from vpng.models import PoissonFactorization
from vpng.paper.cli.output import console
from vpng.paper.datasets import Ratings, read_ratings, read_titles


def recommend_to_user(
    model_file: Path,
    ratings_file: Path,
    user: int,
    *,
    movies: Path | None,
    count: int,
    include_seen: bool,
    fit: bool,
    min_ratings: int,
) -> None:
    """Print the movies with the highest expected ratings for `user`.

    The model need not have seen the user: the row of ratings is folded in.

    Raises:
        InputError: for files that do not fit, or a user without ratings.
    """
    if not fit and not model_file.is_file():
        wanted = "the file of a saved model, or --fit to make it from the ratings"
        raise expected("--model", wanted, f"{model_file}, which does not exist")
    ratings = read_ratings(ratings_file)
    mine = ratings.users == user
    if not mine.any():
        wanted = f"a user with ratings in {ratings_file}"
        raise expected("--user", wanted, f"{user}; ids go up to {ratings.users.max()}")
    titles = {} if movies is None else read_titles(movies)
    if fit:
        model = PoissonFactorization(random_state=0, progress=True)
        model.fit_ratings(ratings, min_ratings=min_ratings).save(model_file)
        console.print(f"wrote {model_file}", soft_wrap=True)
    else:
        model = PoissonFactorization.load(model_file)
    rows, _ = model.rows_of(Ratings(*(column[mine] for column in ratings)))
    if not rows.any():
        wanted = f"a user who rated one of the model's {rows.shape[1]} movies above half a star"
        raise expected("--user", wanted, user)
    found = model.recommend(rows, min(count, rows.shape[1]), exclude_seen=not include_seen)
    table = Table(title=f"for user {user}", title_justify="left")
    for head in ("", "movie", *(["title"] if titles else []), "expected count"):
        table.add_column(head)
    kept = found.items[0] >= 0
    for place, (item, score) in enumerate(
        zip(model.item_ids_[found.items[0][kept]], found.scores[0][kept], strict=True), start=1
    ):
        named = [titles.get(int(item), "")] if titles else []
        table.add_row(str(place), str(int(item)), *named, f"{score:.2f}")
    console.print(table)
    known = int(np.count_nonzero(rows))
    console.print(f"from {known} of the user's {int(mine.sum())} ratings")
