"""`vpng`: the paper from the command line."""

from pathlib import Path
from typing import Annotated, Any

import typer

from vpng.errors import InputError, expected

app = typer.Typer(
    name="vpng",
    help="Variational inference that follows the curvature of the model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Out = Annotated[
    Path, typer.Option(help="Folder for results.json, table.md and the figures.", metavar="DIR")
]


@app.command()
def reproduce(
    name: Annotated[
        str, typer.Argument(help="Which experiment: toy, psd or logistic.", metavar="NAME")
    ],
    out: Out,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.", metavar="N")] = None,
    iterations: Annotated[int | None, typer.Option(help="Steps of every run.", metavar="N")] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds for every method, instead of a number of steps."),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: gradient, natural_gradient, vpng, hessian_free.", metavar="A,B"
        ),
    ] = None,
) -> None:
    """Reproduce one experiment of the paper: results as JSON, figures as PNG and SVG, a table."""
    from vpng.experiments.registry import EXPERIMENTS

    if name not in EXPERIMENTS:
        raise expected("NAME", f"one of {', '.join(EXPERIMENTS)}", repr(name))
    settings = _settings(name, seeds, iterations, budget, methods)
    _run_and_store(name, settings, out)


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the figures and results.", metavar="DIR")
    ] = Path("vpng-demo"),
) -> None:
    """The toy and a short logistic regression: what the method does, in under a minute."""
    _run_and_store("toy", {}, out / "toy")
    quick = {
        "seeds": 3,
        "iterations": 1000,
        "learning_rates": (0.1, 0.3, 1.0),
        "dampings": (1e-2,),
    }
    _run_and_store("logistic", quick, out / "logistic")


def _settings(
    name: str,
    seeds: int | None,
    iterations: int | None,
    budget: float | None,
    methods: str | None,
) -> dict[str, Any]:
    """The experiment's settings from the options; an option that it lacks is refused."""
    from vpng.experiments.methods import parse_methods
    from vpng.experiments.registry import EXPERIMENTS

    experiment = EXPERIMENTS[name]
    if iterations is not None and budget is not None:
        raise expected("--budget", "either --iterations or --budget", "both")
    if iterations is not None and not experiment.takes_iterations:
        raise expected("--iterations", f"an experiment with iterations, not {name}", iterations)
    if budget is not None and not experiment.takes_budget:
        raise expected("--budget", f"an experiment with a time budget, not {name}", budget)
    if methods is not None and not experiment.methods:
        raise expected("--methods", f"an experiment that compares methods, not {name}", methods)
    settings: dict[str, Any] = {}
    if seeds is not None:
        settings["seeds"] = seeds
    if iterations is not None:
        settings["iterations"] = iterations
    if budget is not None:
        settings |= {"budget": budget, "iterations": 10**9}
    if methods is not None:
        settings["methods"] = parse_methods(methods, experiment.methods)
    return settings


def _run_and_store(name: str, settings: dict[str, Any], out: Path) -> None:
    from vpng.checks import output_folder
    from vpng.cli.output import announcements, list_paths, show, store
    from vpng.experiments.registry import EXPERIMENTS

    experiment = EXPERIMENTS[name]
    config = experiment.config(**settings)
    folder = output_folder(out)
    with announcements() as announce:
        results = experiment.run(config, announce)
        announce(f"{name}: drawing")
        paths = store(experiment, results, folder)
    show(experiment, results)
    list_paths(paths)


def main() -> None:
    """Run the command line: bad input is one clear sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        typer.echo(f"vpng: {error}", err=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
