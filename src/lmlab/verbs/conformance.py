"""`lmlab.conformance`: the properties of a language model, tested on a system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import lmlab.conformance  # noqa: F401 -- loaded before the verb takes the package's name
from lmlab.core.options import Argument, Option
from lmlab.core.shared_options import settings_option

if TYPE_CHECKING:
    from lmlab.conformance.check import ConformanceReport


def conformance(
    system: Annotated[
        str | Path | ModuleType,
        Argument("A system of lmlab systems, or a Python file.", metavar="SYSTEM"),
    ],
    *,
    checks: Annotated[
        Sequence[str],
        Option("Run this check only; may be repeated.", flag="--check", metavar="CHECK"),
    ] = (),
    settings: Annotated[
        Mapping[str, Any] | None,
        settings_option("Set a setting of the system, over those of size tiny; repeatable."),
    ] = None,
    progress: Callable[[int, int], None] | None = None,
) -> ConformanceReport:
    """Run the conformance suite: whether a system has the properties of a language model.

    It is trained at size tiny for a moment, in a temporary folder, and each check that applies to
    it is run; see docs/add-a-system.md. `progress` is called with the checks done and their number.

    >>> report = lmlab.conformance("window", checks=["normalisation", "stepping"])
    >>> report.passed, [result.outcome for result in report.results]
    (True, ['passed', 'passed', 'passed'])
    """
    from lmlab.core.system_files import resolve_system

    resolve_system(system)  # report a wrong name before the slow import of torch
    from lmlab.conformance.suite import check_conformance

    return check_conformance(system, checks=checks, settings=settings, progress=progress)
