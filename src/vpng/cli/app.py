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


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="Which experiment: toy, psd, logistic, vae or vae-no-ema.", metavar="NAME"
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for results.json, table.md and the figures.", metavar="DIR")
    ],
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.", metavar="N")] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Most steps of a run.", metavar="N")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds of steps for every method's run.", metavar="SECONDS"),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: gradient, natural_gradient, vpng, hessian_free; "
            "for vae also vpng_block.",
            metavar="A,B",
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="For vae: digits or mnist.", metavar="NAME")
    ] = None,
) -> None:
    """Reproduce one experiment of the paper: results as JSON, figures as PNG and SVG, a table."""
    from vpng.experiments.registry import EXPERIMENTS

    if name not in EXPERIMENTS:
        raise expected("NAME", f"one of {', '.join(EXPERIMENTS)}", repr(name))
    if iterations is not None and budget is not None:
        raise expected("--budget", "either --iterations or --budget", "both")
    given = {
        "seeds": seeds,
        "iterations": iterations,
        "budget": budget,
        "methods": methods,
        "data": data,
    }
    settings = {option: value for option, value in given.items() if value is not None}
    _run_and_store(name, _fitting(name, settings), out)


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


def _fitting(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as the experiment takes them; an option that it lacks is refused."""
    from vpng.experiments.methods import parse_methods
    from vpng.experiments.registry import EXPERIMENTS

    experiment = EXPERIMENTS[name]
    for option in settings:
        if option not in experiment.options:
            listed = ", ".join(f"--{known}" for known in experiment.options)
            raise expected(f"--{option}", f"for {name} one of {listed}", settings[option])
    if "methods" in settings:
        settings["methods"] = parse_methods(settings["methods"], experiment.methods)
    if "budget" in settings:
        # The time decides, not the number of steps.
        settings["iterations"] = 10**9
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
