"""Plug-in of pytest: one test per check of the conformance suite.

    pytest --lmlab-system my-system

or, in a test file of your own:

    from lmlab.conformance.pytest_plugin import conformance_tests

    test_my_system = conformance_tests("my-system")

pytest imports this module at every start, so it imports nothing that is slow; without the option
and without such a test it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lmlab.conformance.check import Check
    from lmlab.conformance.system_under_test import SystemUnderTest, Workspace

WORKSPACE = pytest.StashKey["Workspace"]()
"""The folder of a session with the tiny trainings, which all tests share."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lmlab-system",
        action="append",
        default=[],
        metavar="NAME",
        help="also run lmlab's conformance suite on this system, given by its name or its file; "
        "may be given several times",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the tests of `--lmlab-system`, before those of `-k` are chosen."""
    for system in config.getoption("--lmlab-system"):
        items.extend(_items(session, system))


def _items(session: pytest.Session, system: str) -> Iterator[ConformanceItem]:
    from lmlab.core.errors import UserError

    try:
        name, checks = _applicable_checks(system)
    except UserError as error:
        raise pytest.UsageError(str(error)) from error
    for check in checks:
        item_name = f"conformance[{name}:{check.name}]"
        yield ConformanceItem.from_parent(session, name=item_name, system=name, check=check)


class ConformanceItem(pytest.Item):
    """A check of a system that the command line names."""

    def __init__(self, *, system: str, check: Check, **words: Any) -> None:
        super().__init__(**words)
        self.system, self.check = system, check
        if self.config.pluginmanager.hasplugin("xdist"):
            # With `--dist loadgroup` one worker trains the system, once.
            self.add_marker(pytest.mark.xdist_group(system))

    def runtest(self) -> None:
        factory: pytest.TempPathFactory = self.config._tmp_path_factory  # type: ignore[attr-defined]
        run_case(self.system, self.check.name, workspace_of(self.config, factory))

    def reportinfo(self) -> tuple[str, None, str]:
        return "lmlab conformance", None, f"{self.system}: {self.check.property}"


def conformance_tests(
    *systems: str | Path | ModuleType, checks: Sequence[str] = ()
) -> Callable[..., None]:
    """A test function with one case for each system and check that applies to it.

    A system is given by its name, its file or its module. The checks are those named; by default
    all, but for those that the card exempts from.
    """
    cases = []
    for system in systems:
        name, applicable = _applicable_checks(system, checks)
        cases += [pytest.param(name, one.name, id=f"{name}:{one.name}") for one in applicable]

    @pytest.mark.parametrize(("system", "check"), cases)
    def test_conformance(
        system: str,
        check: str,
        pytestconfig: pytest.Config,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> None:
        run_case(system, check, workspace_of(pytestconfig, tmp_path_factory))

    return test_conformance


def _applicable_checks(
    system: str | Path | ModuleType, names: Sequence[str] = ()
) -> tuple[str, list[Check]]:
    """The name of a system and the checks that apply to it."""
    from lmlab.conformance.suite import applicable_checks, find_checks
    from lmlab.core.system_files import resolve_system

    card, chosen = resolve_system(system), find_checks(names)
    return card.name, [check for check in applicable_checks(card) if check in chosen]


def workspace_of(config: pytest.Config, factory: pytest.TempPathFactory) -> Workspace:
    """The workspace of a session."""
    from lmlab.conformance.system_under_test import Workspace

    if WORKSPACE not in config.stash:
        config.stash[WORKSPACE] = Workspace(factory.mktemp("lmlab-conformance"))
    return config.stash[WORKSPACE]


def run_case(system: str, check: str, workspace: Workspace) -> None:
    """Run a check as a test: its failure is a sentence, without a traceback through lmlab."""
    from lmlab.conformance.check import DoesNotApply, Failure
    from lmlab.conformance.suite import CHECKS, run_isolated
    from lmlab.core.errors import UserError

    outcome: DoesNotApply | Failure | UserError
    try:
        tested: SystemUnderTest = workspace.system(system)
        run_isolated(CHECKS[check], tested)
        return
    except (DoesNotApply, Failure, UserError) as raised:
        outcome = raised
    if isinstance(outcome, DoesNotApply):
        pytest.skip(str(outcome))
    pytest.fail(f"{system}: {check}: {outcome}", pytrace=False)
