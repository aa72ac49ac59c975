"""The tests that cards name as their oracles: `tests/….py` or one function, `tests/….py::name`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST = re.compile(r"tests/[\w/]+\.py(?:::\w+)?")


def oracle_problems(oracle: str, root: Path = ROOT) -> list[str]:
    """What is wrong with the tests that a card's `oracle` names, a sentence each."""
    named = TEST.findall(oracle)
    if not named:
        return [f"the card names no test as its oracle (tests/….py): {oracle!r}"]
    return [problem for test in named for problem in _problems(test, root)]


def _problems(test: str, root: Path) -> list[str]:
    file, _, name = test.partition("::")
    if not (root / file).is_file():
        return [f"the card names the oracle {test}, and there is no file {file}"]
    functions = functions_of(root / file)
    if name and name not in functions:
        return [f"the card names the oracle {test}, and {file} has no function {name}"]
    return [] if functions else [f"the card names the oracle {test}, which has no test function"]


def functions_of(path: Path) -> set[str]:
    """The names of a file's test functions, also of those in classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
