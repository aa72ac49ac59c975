"""Run the code blocks of a Markdown page in order, and compare their output with the page.

    ```bash             run; blocks of `lmlab` lines in this process, which has torch loaded
    ```bash fails       each line must end with exit code 2
    ```python           run
    ```text             what the block before it prints; … stands for anything
    ```text about       the same, but numbers may differ by a tenth or by 0.05, because trained
                        weights differ slightly between processors

Blocks of any other kind are only shown.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmlab.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
USAGE_ERROR = 2
EXACT = {"rel": 1e-9}
ABOUT = {"rel": 0.1, "abs": 0.05}


@dataclass(frozen=True)
class Block:
    """One fenced block: its info string and its content."""

    kind: str
    code: str


def blocks_of(page: str) -> list[Block]:
    """All fenced blocks in order."""
    return [Block(kind.strip(), code) for kind, code in FENCE.findall(page)]


def run_page(page: str) -> list[tuple[Block, str]]:
    """Run all blocks of a page in the current folder; return each with its output."""
    ran: list[tuple[Block, str]] = []
    for block in blocks_of(page):
        if block.kind in ("bash", "bash fails", "python"):
            ran.append((block, run_block(block)))
        elif block.kind in ("text", "text about"):
            assert ran, "output is shown before anything was run"
            missing = lines_missing(block, ran[-1][1])
            assert missing == [], f"{ran[-1][0].code}\nprinted\n{ran[-1][1]}\nwithout {missing}"
    return ran


def run_block(block: Block) -> str:
    """Run one block in the current folder and return its output, errors included."""
    if block.kind == "python":
        return _run_python(block.code)
    expected = USAGE_ERROR if block.kind == "bash fails" else 0
    # A trailing backslash continues the line.
    lines = block.code.replace("\\\n", " ").splitlines()
    if all(line.startswith("lmlab ") for line in lines):
        return "".join(_run_lmlab(line, expected) for line in lines)
    return _run_bash(block.code, expected)


def _run_lmlab(line: str, expected: int) -> str:
    """Run a line `lmlab … [> FILE]` by the entry point of the console script."""
    _, *arguments = shlex.split(line, comments=True)
    printed, noted = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        target = printed
        if ">" in arguments:
            *arguments, _, file = arguments
            target = stack.enter_context(Path(file).open("w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(target))
        stack.enter_context(redirect_stderr(noted))
        code = main(arguments)
    assert code == expected, f"{line}\n{noted.getvalue()}"
    return printed.getvalue() + noted.getvalue()


def _run_python(code: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        exec(compile(code, "page", "exec"), {"__name__": "page"})
    return printed.getvalue()


def _run_bash(code: str, expected: int) -> str:
    # The same command as the console script, also where that is not installed.
    script = 'set -euo pipefail\nlmlab() { "$PYTHON" -m lmlab "$@"; }\n' + code
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, encoding="utf-8", timeout=280
    )
    assert done.returncode == expected, f"{code}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


def lines_missing(shown: Block, printed: str) -> list[str]:
    """The shown lines that were not printed."""
    tolerance = ABOUT if shown.kind == "text about" else EXACT
    lines = [line for line in shown.code.splitlines() if line.strip(" …")]
    return [
        line
        for line in lines
        if not any(_same(line, other, tolerance) for other in printed.splitlines())
    ]


def _same(shown: str, printed: str, tolerance: dict[str, float]) -> bool:
    """Whether two lines agree up to whitespace, with numbers within the tolerance."""
    words = [re.escape(part) for part in NUMBER.split(_squeezed(shown))]
    pattern = f"({NUMBER.pattern})".join(word.replace("…", ".*?") for word in words)
    match = re.fullmatch(pattern, _squeezed(printed))
    if match is None:
        return False
    pairs = zip(NUMBER.findall(_squeezed(shown)), match.groups(), strict=True)
    return all(_number(one) == pytest.approx(_number(two), **tolerance) for one, two in pairs)


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def _number(text: str) -> float:
    return float(text.replace(",", ""))
