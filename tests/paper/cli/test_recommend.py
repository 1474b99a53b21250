"""`vpng recommend` as a user runs it."""

import numpy as np
import pytest
from typer.testing import CliRunner

from vpng.errors import InputError
from vpng.models import PoissonFactorization
from vpng.paper.cli.app import app

RUN = CliRunner()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Ratings of two tastes, titles and a fitted model."""
    folder = tmp_path_factory.mktemp("recommend")
    rng = np.random.default_rng(0)
    lines = ["userId,movieId,rating"]
    for user in range(1, 41):
        liked = range(1, 7) if user % 2 else range(7, 13)
        lines += [f"{user},{movie},4.5" for movie in liked if rng.random() < 0.7]
    lines += ["50,1,4.5", "50,2,5.0", "50,99,5.0", "51,99,4.0"]
    (folder / "ratings.csv").write_text("\n".join(lines) + "\n")
    titles = [f'{movie},"Film {movie}, The",Drama' for movie in range(1, 13)]
    (folder / "movies.csv").write_text("movieId,title,genres\n" + "\n".join(titles) + "\n")
    users, movies = np.array([[int(x) for x in line.split(",")[:2]] for line in lines[1:-4]]).T
    counts = np.zeros((41, 12), np.uint8)
    counts[users, movies - 1] = 8
    model = PoissonFactorization(
        2, hidden=(8,), batch_size=20, max_epochs=60, learning_rate=0.02, random_state=0
    ).fit(counts)
    model.item_ids_ = np.arange(1, 13)
    model.save(folder / "model.vpng")
    return folder


def ask(files, *more, user="50"):
    fixed = ["recommend", "--model", files / "model.vpng", "--ratings", files / "ratings.csv"]
    return RUN.invoke(app, [str(word) for word in [*fixed, "--user", user, *more]])


def test_titles_are_printed_and_seen_movies_left_out(files):
    """User 50 is not in the model and likes movies 1 and 2 of the first taste."""
    shown = ask(files, "--movies", files / "movies.csv", "-n", 4)
    assert shown.exit_code == 0, shown.output
    assert all(f"Film {movie}, The" in shown.output for movie in (3, 4, 5, 6))
    assert "Film 1, The" not in shown.output
    assert "from 2 of the user's 3 ratings" in shown.output


def test_seen_movies_on_request(files):
    shown = ask(files, "-n", 12, "--include-seen")
    assert len([line for line in shown.output.splitlines() if line.startswith("│")]) == 12


@pytest.mark.parametrize(
    ("user", "message"), [("77", "a user with ratings"), ("51", "one of the model's 12 movies")]
)
def test_users_without_ratings_are_refused(files, user, message):
    found = ask(files, user=user)
    assert isinstance(found.exception, InputError)
    assert message in str(found.exception)


def test_a_model_that_does_not_exist(files, tmp_path):
    words = ["recommend", "--model", str(tmp_path / "none"), "--ratings", "x", "--user", "1"]
    found = RUN.invoke(app, words)
    assert "or --fit to make it" in str(found.exception)
