"""Reading results, and saying what is wrong with those that cannot be reported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apportion.errors import InvalidArgument

VERSION = 1
FILE = "results.json"
RERUN = "Run `apportion compare` to write a fresh one, or name another"


def read_results(path: Path | str) -> dict[str, Any]:
    """Read the results of a comparison or of a table: a file, or the results.json in a folder."""
    file = Path(path)
    if file.is_dir():
        file = file / FILE
    if file.exists() and not file.is_file():  # a device has no end
        raise InvalidArgument("path", str(file), "it is not a file", f"Pass a {FILE} or a folder that holds one")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        fix = f"Pass a {FILE} or a folder that holds one; `apportion compare` writes it"
        raise InvalidArgument("path", str(file), "there is no such file", fix) from None
    except OSError as error:
        raise InvalidArgument(
            "path", str(file), f"it cannot be read ({error.strerror})", "Check its permissions"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("path", str(file), f"it is not valid JSON ({error})", RERUN) from None
    if problem := problem_of(found):
        raise InvalidArgument("path", str(file), problem, RERUN)
    return dict(found)


def not_run(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a study left out: objects with an experiment, a recipe and a reason."""
    found = results.get("not_run")
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


def problem_of(results: Any) -> str | None:
    """Say what keeps `results` from being reported, or None."""
    if not isinstance(results, Mapping):
        return "the results must be one JSON object"
    version = results.get("version", VERSION)
    if version != VERSION:
        return f"its version is {version!r} and this release of Apportion reads version {VERSION}"
    runs = results.get("runs")
    if not isinstance(runs, Sequence) or isinstance(runs, str):
        return "it has no list of 'runs'"
    if not runs:
        reasons = dict.fromkeys(str(entry.get("reason")) for entry in not_run(results))
        return f"nothing of it was run, so there is nothing to report{': ' if reasons else ''}{'; '.join(reasons)}"
    for place, run in enumerate(runs):
        if not isinstance(run, Mapping) or "recipe" not in run:
            return f"runs[{place}] is not an object with a 'recipe'"
        history = run.get("history") or ()
        if not isinstance(history, Sequence) or not all(isinstance(entry, Mapping) for entry in history):
            return f"runs[{place}]['history'] is not a list of objects"
    return None
