"""Reading results back, checked against the schema that ships with the library."""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from vpng.errors import InputError, expected


@cache
def _schema() -> dict[str, Any]:
    return json.loads(
        files("vpng.paper.experiments").joinpath("results.schema.json").read_text("utf-8")
    )


def validate(document: Any, where: str = "results") -> dict[str, Any]:
    """`document` if it follows the schema.

    Raises:
        InputError: saying where in the document something else was expected.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    fault = best_match(Draft202012Validator(_schema()).iter_errors(document))
    if fault is not None:
        shown = fault.message if len(fault.message) < 300 else fault.message[:297] + "..."
        raise InputError(
            f"{where}: expected a document of vpng.results/1, at {fault.json_path} {shown}."
        )
    for position, run in enumerate(document["runs"]):
        lengths = {name: len(curve) for name, curve in run["curves"].items()}
        if len(set(lengths.values())) > 1:
            raise expected(f"{where}: runs[{position}].curves", "curves of one length", lengths)
    return document


def load_results(folder: Path) -> dict[str, Any]:
    """The document in `folder`.

    Raises:
        InputError: if there is none or it does not follow the schema.
    """
    path = folder / "results.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        hint = (
            "; the grid there is unfinished: go on with --resume"
            if (folder / "runs").exists()
            else ""
        )
        raise expected(str(folder), "a folder with results.json", f"none{hint}") from error
    except (OSError, ValueError) as error:
        raise expected(str(path), "a JSON document", str(error)) from error
    return validate(document, str(path))


def find_results(folder: Path) -> dict[str, Path]:
    """The folders with results at `folder` or right below it, by a name that tells them apart.

    Raises:
        InputError: if there are none.
    """
    if not folder.is_dir():
        raise expected(str(folder), "a folder of results", "no such folder")
    if (folder / "results.json").exists():
        return {folder.name: folder}
    below = {path.parent.name: path.parent for path in sorted(folder.glob("*/results.json"))}
    if not below:
        load_results(folder)
    return below
