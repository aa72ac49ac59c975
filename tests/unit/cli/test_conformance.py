"""lmlab conformance: a line per check, located failures, exit codes, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lmlab as package
from lmlab.conformance.suite import CHECKS
from lmlab.core.registry import remove_system
from lmlab.models.causal_lm import AutoregressiveLM
from lmlab.verbs.conformance import conformance as verb

from .conftest import Command


def test_passing_system(lmlab: Command):
    done = lmlab("conformance", "window", "--check", "stepping", "--check", "sampling")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [
        ["training", "passed"],
        ["sampling", "passed"],
        ["stepping", "passed"],
    ]
    assert lines[-1].startswith("window: passes all 3 checks (")


def test_failure_says_where_and_exits_with_1(lmlab: Command, monkeypatch: pytest.MonkeyPatch):
    advance = AutoregressiveLM.advance
    monkeypatch.setattr(
        AutoregressiveLM, "advance", lambda self, s, tokens: advance(self, s, tokens.clamp(max=5))
    )
    done = lmlab("conformance", "window", "--check", "stepping", "--check", "card")
    assert done.code == 1
    assert "stepping failed: Token by token, a text has the log-probabilities" in done.out
    assert "than at once: at position 2 expected -" in done.out
    assert "window: 1 of 3 checks failed (" in done.out

    done = lmlab("conformance", "window", "--check", "stepping", "--json")
    assert done.code == 1
    [report] = json.loads(done.out)
    [_, failure] = report["results"]
    assert report["passed"] is False
    assert (failure["check"], failure["outcome"]) == ("stepping", "failed")
    assert failure["where"] == {"position": 2}
    assert abs(failure["measured"] - failure["expected"]) > 1e-5


def test_error_of_the_system_is_a_failure_with_its_place(
    lmlab: Command, monkeypatch: pytest.MonkeyPatch
):
    def peek(self, state):
        raise ValueError("no such state")

    monkeypatch.setattr(AutoregressiveLM, "peek", peek)
    done = lmlab("conformance", "window", "--check", "stepping")
    assert done.code == 1
    assert "ValueError in peek (" in done.out
    assert "test_conformance.py:" in done.out


def test_system_that_cannot_be_trained(lmlab: Command, monkeypatch: pytest.MonkeyPatch):
    def loss(self, batch, **options):
        return torch.zeros(2) @ torch.zeros(3)

    monkeypatch.setattr(AutoregressiveLM, "loss", loss)
    done = lmlab("conformance", "window", "--check", "stepping", "--json")
    assert done.code == 1
    [report] = json.loads(done.out)
    training, stepping = report["results"]
    assert (training["check"], training["outcome"]) == ("training", "failed")
    assert training["message"].startswith("RuntimeError in loss (")
    assert (stepping["outcome"], stepping["message"]) == (
        "does not apply",
        "its tiny training failed",
    )


BROKEN = '''"""A system whose forward pass fails inside torch."""
from dataclasses import dataclass
import torch
from lmlab.core.card import Card
from lmlab.core.errors import UserError
from lmlab.zoo import window

CARD = Card(family="x", kind="exact", paper="", source="", protocols=("LogProb",), oracle="")
SIZES = window.SIZES
Config = window.Config


def build(config, vocabulary):
    system = window.build(config, vocabulary)
    linear = torch.nn.functional.linear
    system.emission.log_prob = lambda *values: linear(values[0], values[0][:, 1:])
    return system
'''


@pytest.fixture
def broken_place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "broken_place.py"
    remove_system("broken-place")


def test_place_of_an_error_is_in_the_systems_own_file(lmlab: Command, broken_place: Path):
    path = broken_place
    path.write_text(BROKEN)
    done = lmlab("conformance", path)
    assert done.code == 1
    [line] = [n for n, text in enumerate(BROKEN.splitlines(), 1) if "lambda" in text]
    assert f"in <lambda> ({path}:{line})" in done.out, done.out
    assert f"No other check was run ({len(CHECKS)}), as training failed." in done.out
    path.write_text(BROKEN.replace("SIZES =", "SIZE ="))
    done = lmlab("conformance", path)
    assert f"  {path} declares no SIZES;" in done.out and "_check_module" not in done.out


def test_exemptions_and_what_does_not_apply_have_reasons():
    report = package.conformance("dpr", checks=["sampling", "stepping"])
    reasons = {result.check: (result.outcome, result.message) for result in report.results}
    assert reasons["sampling"] == ("exempt", "it can't sample a text")
    assert reasons["stepping"] == ("does not apply", "the card does not name the protocol Step")
    assert package.conformance is verb, "also after modules of its package are imported"


def test_checks_that_do_not_apply_are_named_by_reason(lmlab: Command):
    done = lmlab("conformance", "window", "--check", "stepping", "--check", "energy-conditional")
    assert done.code == 0, done.err
    table, _, others = done.out.partition("Not applicable")
    assert [line.split()[0] for line in table.splitlines()] == ["check", "training", "stepping"]
    assert others.startswith(" (the card does not name the protocol Energy): energy-conditional.")


def test_checks_are_listed(lmlab: Command):
    done = lmlab("conformance", "--list", "--json")
    assert done.code == 0, done.err
    assert [one["check"] for one in json.loads(done.out)] == list(CHECKS)
    assert "samples what it scores" in lmlab("conformance", "--list").out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "conformance needs the name or the file of a system"),
        (("windows",), "there is no system called 'windows'; did you mean 'window'"),
        (("window", "--check", "steping"), "no check called 'steping'; did you mean 'stepping'"),
    ],
)
def test_user_errors(lmlab: Command, arguments: tuple[str, ...], said: str):
    done = lmlab("conformance", *arguments)
    assert done.code == 2
    assert said in done.err
