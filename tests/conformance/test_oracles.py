"""Every card names an oracle that exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.core.registry import catalogue

from .oracles import oracle_problems


@pytest.mark.parametrize("name", catalogue())
def test_card_oracle_exists(name: str):
    # Tests of systems added outside the repository are searched in the working directory.
    oracle = catalogue()[name].oracle
    problems = oracle_problems(oracle)
    assert [] in (problems, oracle_problems(oracle, Path.cwd())), "; ".join(problems)


@pytest.mark.parametrize(
    ("oracle", "said"),
    [
        ("by hand", "the card names no test as its oracle"),
        ("by hand: tests/gone.py", "there is no file tests/gone.py"),
        ("by hand: tests/here.py::test_gone", "tests/here.py has no function test_gone"),
        ("by hand: tests/empty.py", "which has no test function"),
        ("by hand: tests/here.py; by loops: tests/gone.py", "there is no file tests/gone.py"),
    ],
)
def test_missing_oracle_is_reported(tmp_path: Path, oracle: str, said: str):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "here.py").write_text("class TestX:\n    def test_here(self): ...\n")
    (tmp_path / "tests" / "empty.py").write_text("def helper(): ...\n")
    [problem] = oracle_problems(oracle, tmp_path)
    assert said in problem
    assert oracle_problems("by hand: tests/here.py::test_here", tmp_path) == []
