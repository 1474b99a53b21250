"""`vpng`: the paper from the command line."""

from pathlib import Path
from typing import Annotated

import typer

from vpng.checks import output_folder
from vpng.distributed.faults import LostProcessError
from vpng.errors import InputError, expected
from vpng.run.interrupted import InterruptedRunError
from vpng.version import __version__

app = typer.Typer(
    name="vpng",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vpng {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Variational inference that follows the curvature of the model."""


@app.command()
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="Which experiment: toy, psd, logistic, vae, vae-no-ema, vmf, or all of them.",
            metavar="NAME",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the results, tables and figures.", metavar="DIR")
    ],
    preset: Annotated[
        str, typer.Option(help="default, quick or paper: how large the runs are.", metavar="NAME")
    ] = "default",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the runs that are in the folder.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Settings in a TOML file.", metavar="FILE")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting, as often as you like.", metavar="KEY=VALUE"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.", metavar="N")] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Most steps of a run.", metavar="N")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Seconds of steps for every method's run; for logistic, for its whole sweep.",
            metavar="SECONDS",
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: gradient, natural_gradient, vpng, hessian_free; "
            "for vae and vmf also vpng_block, for vmf vpng_eigenbasis.",
            metavar="A,B",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="For vae: digits or mnist; for vmf: synthetic, ml-20m and more.", metavar="NAME"
        ),
    ] = None,
    mesh: Annotated[
        bool, typer.Option("--mesh", help="Divide every batch among all devices; vae and vmf.")
    ] = False,
    distributed: Annotated[
        bool,
        typer.Option(
            "--distributed",
            help="As one process of a job under SLURM, Open MPI or Kubernetes, with --mesh.",
        ),
    ] = False,
    coordinator: Annotated[
        str | None,
        typer.Option(help="As one process of several: where process 0 is.", metavar="HOST:PORT"),
    ] = None,
    num_processes: Annotated[
        int | None, typer.Option(help="With --coordinator: how many there are.", metavar="N")
    ] = None,
    process_id: Annotated[
        int | None, typer.Option(help="With --coordinator: which this is, from 0.", metavar="I")
    ] = None,
) -> None:
    """Reproduce an experiment of the paper: results as JSON and CSV, figures, a table."""
    from vpng.paper.cli.reproduce import reproduce_all, reproduce_one
    from vpng.paper.experiments.registry import EXPERIMENTS
    from vpng.paper.experiments.settings import Preset

    if name not in (*EXPERIMENTS, "all"):
        raise expected("NAME", f"one of {', '.join(EXPERIMENTS)}, all", repr(name))
    if preset not in set(Preset):
        raise expected("--preset", f"one of {', '.join(Preset)}", repr(preset))
    if iterations is not None and budget is not None:
        raise expected("--budget", "either --iterations or --budget", "both")
    given = {
        "seeds": seeds,
        "iterations": iterations,
        "budget": budget,
        "methods": methods,
        "data": data,
    }
    options = {option: value for option, value in given.items() if value is not None}
    joins = distributed or any(v is not None for v in (coordinator, num_processes, process_id))
    if name == "all":
        if options or assignments or mesh or joins:
            listed = ", ".join([f"--{option}" for option in options] or ["--set or --mesh"])
            raise expected("all", "--preset, --config and --resume alone", listed)
        reproduce_all(out, preset=Preset(preset), config=config, resume=resume)
        return
    if joins:
        from vpng.distributed import join

        join(coordinator, num_processes, process_id)
    reproduce_one(
        name,
        out,
        options=options,
        assignments=assignments or [],
        preset=Preset(preset),
        config=config,
        resume=resume,
        on_mesh=mesh or joins,
    )


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of results, or a folder of such folders.", metavar="DIR"),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; DIR/report.html if left out.", metavar="FILE")
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Show it in a browser, from this machine alone.")
    ] = False,
) -> None:
    """Make one self-contained HTML page: verdicts, tables, interactive curves, how to repeat it."""
    from vpng.paper.cli.output import console, list_paths
    from vpng.paper.report import write_report

    path = write_report(folder, out)
    list_paths([path])
    if show:
        import webbrowser

        from vpng.paper.report.serve import address, make_server

        with make_server(path.read_text(encoding="utf-8")) as server:
            console.print(f"{address(server)} until you press Ctrl-C", soft_wrap=True)
            webbrowser.open(address(server))
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                console.print("stopped")


@app.command()
def race(
    target: Annotated[
        str,
        typer.Argument(
            help="module:attribute with (problem, params, data), or a function that returns them.",
            metavar="TARGET",
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the results, tables and figures.", metavar="DIR")
    ],
    budget: Annotated[
        float | None,
        typer.Option(help="Seconds of steps for every method's run.", metavar="SECONDS"),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Number of seeds.", metavar="N")] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: gradient, natural_gradient, vpng, hessian_free.", metavar="A,B"
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting, as often as you like.", metavar="KEY=VALUE"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the runs that are in the folder.")
    ] = False,
) -> None:
    """Race all methods on a problem of your own, and write the results and the report."""
    from vpng.paper.cli.race import race_and_show

    given = {"budget": budget, "seeds": seeds, "methods": methods}
    options = {option: value for option, value in given.items() if value is not None}
    race_and_show(target, out, options, assignments or [], resume=resume)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(help="Folder of results, before.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="Folder of results, after.", metavar="B")],
    out: Annotated[
        Path | None, typer.Option(help="Write it as Markdown too.", metavar="FILE")
    ] = None,
) -> None:
    """Put two folders of results side by side: what was changed, and whether it helped."""
    from vpng.paper.cli.output import console, list_paths, show
    from vpng.paper.experiments.results import write_text
    from vpng.paper.experiments.store import markdown
    from vpng.paper.report.compare import compare as compare_folders

    texts = []
    for found in compare_folders(a, b):
        show(found.experiment, found.table())
        for note in found.notes():
            console.print(note, soft_wrap=True)
        notes = "\n".join(f"- {note}" for note in found.notes())
        texts.append(f"## {found.experiment}\n\n{notes}\n\n{markdown(found.table())}")
    if out is not None:
        list_paths([write_text(out, "\n".join(texts))])


@app.command()
def recommend(
    model: Annotated[
        Path, typer.Option(help="A model saved by PoissonFactorization.", metavar="FILE")
    ],
    ratings: Annotated[
        Path, typer.Option(help="MovieLens's ratings.csv or ratings.dat.", metavar="FILE")
    ],
    user: Annotated[int, typer.Option(help="The user's id in the ratings.", metavar="ID")],
    movies: Annotated[
        Path | None, typer.Option(help="MovieLens's movies.csv, for titles.", metavar="FILE")
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", help="How many movies.", metavar="N", min=1)
    ] = 10,
    include_seen: Annotated[
        bool, typer.Option("--include-seen", help="Movies that the user has rated, too.")
    ] = False,
    fit: Annotated[
        bool, typer.Option("--fit", help="First fit a model to the ratings and write it.")
    ] = False,
    min_ratings: Annotated[
        int, typer.Option(help="With --fit: ratings that a movie needs.", metavar="N", min=1)
    ] = 20,
) -> None:
    """Recommend movies to a user, known to the model or new."""
    from vpng.paper.cli.recommend import recommend_to_user

    recommend_to_user(
        model,
        ratings,
        user,
        movies=movies,
        count=count,
        include_seen=include_seen,
        fit=fit,
        min_ratings=min_ratings,
    )


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the figures and results.", metavar="DIR")
    ] = Path("vpng-demo"),
) -> None:
    """The toy and a short logistic regression: what the method does, in under a minute."""
    from vpng.paper.cli.reproduce import run_and_store
    from vpng.paper.experiments.logistic import LogisticConfig
    from vpng.paper.experiments.toy import ToyConfig

    out = output_folder(out)
    # A demo that was stopped goes on; one that is whole is shown anew.
    unfinished = lambda name: not (out / name / "results.json").exists()
    run_and_store("toy", ToyConfig(), out / "toy", resume=unfinished("toy"))
    quick = LogisticConfig(
        seeds=3, iterations=1000, learning_rates=(0.1, 0.3, 1.0), dampings=(1e-2,)
    )
    run_and_store("logistic", quick, out / "logistic", resume=unfinished("logistic"))


def main() -> None:
    """Run the command line: bad input is one clear sentence and exit code 2.

    A run that a signal stopped ends with one sentence too, and with the signal's exit code.
    """
    try:
        app()
    except InputError as error:
        typer.echo(f"vpng: {error}", err=True)
        raise SystemExit(2) from None
    except LostProcessError as error:
        typer.echo(f"vpng: {error}", err=True)
        raise SystemExit(1) from None
    except InterruptedRunError as stop:
        typer.echo(f"vpng: {stop}; what is done is kept, go on with --resume", err=True)
        raise SystemExit(128 + stop.signal) from None


if __name__ == "__main__":
    main()
