"""Which skips a strict run allows: a suite that skips its oracles must not be green."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ALLOWED = Path(__file__).with_name("allowed_skips.toml")


@dataclass(frozen=True)
class Skip:
    """A test or a module that was skipped."""

    test: str
    """Its node id."""
    reason: str

    def sentence(self) -> str:
        return f"{self.test}: {self.reason}"


@dataclass(frozen=True)
class Rule:
    """A skip that is allowed."""

    test: str
    """Node ids, `*` for anything."""
    reason: str
    """A part of the reason that the skip gives."""
    why: str
    """Why nothing is lost."""

    def allows(self, skip: Skip) -> bool:
        return fnmatchcase(skip.test, self.test) and self.reason in skip.reason


def read_rules(path: Path = ALLOWED) -> list[Rule]:
    """The rules of a TOML file of `[[skip]]` tables, each with test, reason and why."""
    return [Rule(**table) for table in tomllib.loads(path.read_text(encoding="utf-8"))["skip"]]


def not_allowed(skips: Iterable[Skip], rules: Iterable[Rule]) -> list[Skip]:
    """The skips that no rule allows, each once."""
    rules = list(rules)
    return [skip for skip in dict.fromkeys(skips) if not any(rule.allows(skip) for rule in rules)]


def skip_of(report: object) -> Skip | None:
    """The skip of a report of pytest; None for any other outcome, and for an expected failure."""
    if not getattr(report, "skipped", False) or hasattr(report, "wasxfail"):
        return None
    told = getattr(report, "longrepr", "")
    reason = str(told[2]) if isinstance(told, (tuple, list)) else str(told)
    return Skip(getattr(report, "nodeid", ""), reason.removeprefix("Skipped: "))
