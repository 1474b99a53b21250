"""`vpng reproduce`: from options and files to settings, from settings to a folder of results."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vpng.checks import output_folder
from vpng.distributed import Layout, agree, from_first, is_first, make_mesh
from vpng.errors import expected
from vpng.paper.cli.output import list_paths, live_status, show
from vpng.paper.experiments.chosen_methods import parse_methods
from vpng.paper.experiments.journal import Journal, check_journal
from vpng.paper.experiments.registry import EXPERIMENTS, Experiment
from vpng.paper.experiments.results import plain
from vpng.paper.experiments.session import Session
from vpng.paper.experiments.settings import Preset, parse_assignment, read_toml, typed_settings
from vpng.paper.experiments.store import store
from vpng.paper.report import write_report
from vpng.runtime.interrupts import deferred_interrupts


def reproduce_one(
    name: str,
    out: Path,
    *,
    options: Mapping[str, Any],
    assignments: list[str],
    preset: Preset,
    config: Path | None,
    resume: bool,
    on_mesh: bool = False,
) -> None:
    """Run the experiment `name`: the preset first, then the file, then the options.

    Raises:
        InputError: if a setting does not fit; nothing is written then.
    """
    names = tuple(EXPERIMENTS)
    from_file = read_toml(config, names, name) if config else {}
    configuration = configured(name, options, assignments, preset, from_file, str(config))
    run_and_store(name, configuration, out, resume=resume, on_mesh=on_mesh)


def reproduce_all(out: Path, *, preset: Preset, config: Path | None, resume: bool) -> None:
    """Run every experiment into a folder of its own under `out`, then write the report.

    Raises:
        InputError: if a setting does not fit or data are missing; nothing is written then.
    """
    tables = read_toml(config, tuple(EXPERIMENTS), "all") if config else {}
    configurations = {
        name: configured(name, {}, [], preset, tables.get(name, {}), str(config))
        for name in EXPERIMENTS
    }
    for name, configuration in configurations.items():
        check_journal(out / name, name, asdict(configuration), resume=resume)
    for name, configuration in configurations.items():
        EXPERIMENTS[name].load(configuration)
    for name, configuration in configurations.items():
        # A folder that is there and whole is done: its runs are recalled, its files drawn again.
        run_and_store(name, configuration, out / name, resume=resume)
    list_paths([write_report(out)])


def configured(
    name: str,
    options: Mapping[str, Any],
    assignments: list[str],
    preset: Preset,
    from_file: Mapping[str, Any],
    file: str,
) -> Any:
    """The typed configuration of the experiment `name`."""
    experiment = EXPERIMENTS[name]
    kind = type(experiment.config())
    given = {
        **typed_settings(kind, from_file, file),
        **typed_settings(kind, _fitting(name, experiment, options), name),
        **typed_settings(kind, dict(map(parse_assignment, assignments)), "--set"),
    }
    if "methods" in given:
        parse_methods(",".join(given["methods"]), experiment.methods)
    return experiment.config(**experiment.settings(preset, given))


def run_and_store(
    name: str, configuration: Any, out: Path, *, resume: bool = False, on_mesh: bool = False
) -> None:
    """Run an experiment with its progress shown, write its files and print its table.

    On a mesh over all devices of all processes, the first process does the showing and writing.
    """
    experiment = EXPERIMENTS[name]
    if not on_mesh:
        folder = output_folder(out)
        journal = Journal.open(folder, name, asdict(configuration), resume=resume)
        _run_and_show(name, experiment, configuration, folder, journal, None)
        return
    if not experiment.on_mesh:
        known = ", ".join(other for other, one in EXPERIMENTS.items() if one.on_mesh)
        raise expected("--mesh", f"one of the experiments {known}", name)
    agree({"experiment": name, **plain(asdict(configuration))})
    layout = Layout(make_mesh())
    opened: list[Journal] = []

    def open_journal() -> None:
        folder = output_folder(out)
        opened.append(Journal.open(folder, name, asdict(configuration), resume=resume))

    from_first(open_journal)
    if is_first():
        _run_and_show(name, experiment, configuration, out, opened[0], layout)
    else:
        with deferred_interrupts():
            experiment.run(configuration, Session(None, layout=layout))


def _run_and_show(
    name: str,
    experiment: Experiment,
    configuration: Any,
    folder: Path,
    journal: Journal,
    layout: Layout | None,
) -> None:
    with journal.withdrawn_if_refused(), deferred_interrupts(), live_status(name) as watch:
        session = Session(journal, watch, layout)
        results = experiment.run(configuration, session)
        session("drawing")
        paths = store(experiment, results, folder)
    show(name, experiment.table(results))
    list_paths(paths)


def _fitting(name: str, experiment: Experiment, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the experiment takes them; one that it lacks is refused."""
    for option, value in options.items():
        if option not in experiment.options:
            listed = ", ".join(f"--{known}" for known in experiment.options)
            raise expected(f"--{option}", f"for {name} one of {listed}", value)
    fitting = dict(options)
    if "methods" in options:
        fitting["methods"] = parse_methods(options["methods"], experiment.methods)
    return fitting
