"""Registry of the benchmark suites: every file of `suites/`, by its SUITE."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from pathlib import Path

from lmlab.core.errors import UserError, nearest_names
from lmlab.scoring import suites
from lmlab.scoring.suite import Suite, SuiteCollection


def all_suites() -> dict[str, Suite | SuiteCollection]:
    """Every suite by name; imports their files."""
    found: dict[str, Suite | SuiteCollection] = {}
    for file in pkgutil.iter_modules(suites.__path__):
        suite = importlib.import_module(f"{suites.__name__}.{file.name}").SUITE
        assert suite.name == file.name.replace("_", "-"), f"the suite of {file.name}.py"
        found[suite.name] = suite
    return found


@dataclass(frozen=True, kw_only=True)
class SuiteData:
    """A suite and the file or folder of its data."""

    suite: Suite
    path: Path


def find_suites(name: str, data: Path) -> list[SuiteData]:
    """The suite of that name, or the suites of that collection, with their data.

    A suite's data may also be given as the folder of a collection that it belongs to.
    """
    known = all_suites()
    if name not in known:
        close = nearest_names(name, known) or sorted(known)
        raise UserError(f"there is no suite {name!r}; did you mean {' or '.join(close)}?")
    if not data.exists():
        raise UserError(f"there is no data at {data}; give the suite's folder or file.")
    chosen = known[name]
    folders: dict[str, Path] = {}
    for collection in known.values():
        if isinstance(collection, SuiteCollection):
            folders |= {suite: data / folder for suite, folder in collection.folders.items()}
    if isinstance(chosen, Suite):
        inside = folders.get(name, data)
        return [SuiteData(suite=chosen, path=inside if inside.is_dir() else data)]
    parts = [
        SuiteData(suite=suite, path=folders[part])
        for part in chosen.folders
        if isinstance(suite := known[part], Suite) and folders[part].is_dir()
    ]
    if not parts:
        names = ", ".join(chosen.folders.values())
        raise UserError(f"{data} has none of the folders {names}; give the folder that holds them.")
    return parts
