"""The code blocks of a Markdown page: found, and run as a reader would run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language ('' or text for shown output) and what stands in it."""

    language: str
    code: str


def blocks_of(page: str) -> list[Block]:
    """All blocks in the order they are read."""
    return [Block(language, code) for language, code in FENCE.findall(page)]


def run_block(block: Block, folder: Path) -> str:
    """Run a bash or python block in a folder and give what it printed; a failure fails the test."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
        "PYTHON": sys.executable,
        "COLUMNS": "160",
        "NO_COLOR": "1",
    }
    if block.language == "bash":
        # The same command as the console script, also where that is not installed.
        script = 'set -euo pipefail\nlmlab() { "$PYTHON" -m lmlab "$@"; }\n' + block.code
        command = ["bash", "-c", script]
    else:
        assert block.language == "python", block.language
        command = [sys.executable, "-c", block.code]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, encoding="utf-8", timeout=280
    )
    assert done.returncode == 0, f"{block.code}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout
