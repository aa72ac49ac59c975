"""Fixtures of the command-line tests: run a command in-process, and briefly trained runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmlab.cli.main import main


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def lmlab(capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process, as the console script would."""

    def run(*arguments: object) -> Result:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An n-gram model, and an LSTM with two seeds, trained for a few steps on the grammar."""
    folder = tmp_path_factory.mktemp("runs")
    budget = ("--size", "tiny", "--steps", "6", "--data", "grammar")
    for name, system, seed in (("ngram", "ngram", 0), ("lstm", "lstm", 0), ("lstm-1", "lstm", 1)):
        code = main(["train", system, "--out", str(folder / name), *budget, "--seed", str(seed)])
        assert code == 0, f"training {name} failed"
    return {path.name: path for path in folder.iterdir()}
