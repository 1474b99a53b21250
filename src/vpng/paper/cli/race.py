"""`vpng race`: all methods on a problem of the user's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vpng.paper.cli.output import list_paths, live_status, show
from vpng.paper.experiments.chosen_methods import parse_methods
from vpng.paper.experiments.race import METHODS, RaceConfig, load_course, race_on, table
from vpng.paper.experiments.settings import parse_assignment, typed_settings
from vpng.runtime.interrupts import deferred_interrupts


def race_and_show(
    target: str, out: Path, options: Mapping[str, Any], assignments: list[str], *, resume: bool
) -> None:
    """Run the race on what `target` names; files and the page go to `out`.

    Raises:
        InputError: if something does not fit; nothing is written then.
    """
    given = dict(options)
    if "methods" in given:
        given["methods"] = parse_methods(given["methods"], METHODS)
    given |= dict(map(parse_assignment, assignments))
    settings = typed_settings(RaceConfig, given, "--set")
    RaceConfig(**settings)
    course = load_course(target)
    with deferred_interrupts(), live_status(target) as watch:
        results = race_on(course, name=target, out=out, resume=resume, watcher=watch, **settings)
    show(target, table(results))
    list_paths([out / "results.json", out / "report.html"])
