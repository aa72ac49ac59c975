"""`--no-skips`: a run in which a test was skipped fails, but for tests/allowed_skips.toml."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmlab.core import registry

from .skips import ALLOWED, Skip, not_allowed, read_rules, skip_of


def pytest_addoption(parser: pytest.Parser) -> None:
    help = f"Fail where a test is skipped that {ALLOWED.name} does not allow."
    parser.addoption("--no-skips", action="store_true", help=help)


def pytest_configure(config: pytest.Config) -> None:
    # Workers of xdist hand their reports on: only the process that started them decides.
    if config.getoption("--no-skips") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipsFail(), "lmlab-skips-fail")


class SkipsFail:
    """Collects skips, and fails the session where one is not allowed."""

    def __init__(self) -> None:
        self.skips: list[Skip] = []
        self.refused: list[Skip] = []

    def _note(self, report: object) -> None:
        skip = skip_of(report)
        if skip is not None:
            self.skips.append(skip)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.refused = not_allowed(self.skips, read_rules())
        if self.refused and session.exitstatus in (pytest.ExitCode.OK, 5):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.refused:
            return
        terminalreporter.section("skips that are not allowed", red=True)
        for skip in self.refused:
            terminalreporter.line(skip.sentence())
        terminalreporter.line(
            "Install what is missing (delete .venv/.installed-test and run make test), allow the "
            f"skip in tests/{ALLOWED.name} with a reason, or run make test ALLOW_SKIPS=1."
        )


@pytest.fixture(autouse=True)
def forget_given_systems() -> Iterator[None]:
    """Systems that a test gives as files are in no other test's catalogue."""
    before = dict(registry._given)
    yield
    for name in registry._given.keys() - before.keys():
        registry.remove_system(name)
