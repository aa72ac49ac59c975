"""Verbs of the catalogue: systems, find, settings."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

from lmlab.core.errors import UserError
from lmlab.core.notebook import Records
from lmlab.core.options import Argument, Option

if TYPE_CHECKING:
    from lmlab.core.card import Card
    from lmlab.core.search import SearchHit
    from lmlab.training.setting_records import SettingRecord


def systems() -> Records[Card]:
    """List all systems, those of plug-ins with their package.

    >>> "lstm" in [card.name for card in lmlab.systems()]
    True
    """
    from lmlab.core.plugins import warn_problems
    from lmlab.core.registry import catalogue, system_problems

    warn_problems(sorted(set(system_problems().values())))
    return Records(catalogue().values())


def find(
    text: Annotated[str, Argument("A system's name or alias, or words of an idea.")],
    *,
    limit: Annotated[int, Option("Show this many results at most.", minimum=1)] = 10,
) -> Records[SearchHit]:
    """Search systems, commands, settings, classes, docs and terms; show one system by name.

    >>> [hit.kind for hit in lmlab.find("perplexity", limit=1)]
    ['term']
    """
    from lmlab.core.search import search

    if not isinstance(text, str):
        raise UserError(f"find takes a text, got {type(text).__name__}.")
    return Records(search(text, limit))


def settings(
    system: Annotated[
        str | Path | ModuleType | None,
        Argument("Add this system's own settings and defaults.", metavar="[SYSTEM]"),
    ] = None,
    *,
    recipe: Annotated[str | None, Option("Show the values that a recipe of SYSTEM sets.")] = None,
    task: Annotated[
        str | None, Option("List the settings of finetune --task TASK instead.")
    ] = None,
) -> Records[SettingRecord]:
    """List the settings that --set NAME=VALUE takes: type, default and what each does.

    >>> {record.name: record.default for record in lmlab.settings()}["learning_rate"]
    0.002
    """
    from lmlab.tasks.setting_listing import settings as list_settings

    return Records(list_settings(system, recipe=recipe, task=task))


def register(system: str | Path | ModuleType) -> Card:
    """Make the system of a Python file or an imported module known under the file's name.

    It is listed, trained and loaded like any other until this process ends; see
    `lmlab.core.system_files.register`.
    """
    from lmlab.core.system_files import register as register_system

    return register_system(system)
