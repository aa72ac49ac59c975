"""The commands of docs/knowledge.md run in order, with small and short trainings.

The commands on WordNet still take minutes, because 117,659 glosses are tokenized, indexed and
linked: `make test` runs only the commands on the capitals.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .page_runner import Block, run_block

PAGE = Path(__file__).resolve().parents[2] / "docs" / "knowledge.md"
ALL_COMMANDS = re.findall(r"^    (lmlab .+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
COMMANDS = [line for line in ALL_COMMANDS if not re.search("import-hf|runs/encoder", line)]
"""Commands with a published encoder need its folder; tests/parity/test_hf_sentence_encoders.py
tests them on an encoder that it builds."""
ON_CAPITALS = [line for line in COMMANDS if re.search("runs/(rag|fae)", line)]
DRAWING = "lmlab inspect"
SHORT_OPTIONS = {
    "lmlab train cogqa": " --size tiny --set length=128 --steps 2",
    "lmlab train": " --size tiny --steps 2",
    "lmlab finetune": " --examples 60 --steps 2",
}
"""Options appended to a command, by its prefix."""


def shortened(line: str) -> str:
    """The command with few documents and a minimal training budget."""
    command = line.partition("  #")[0].replace("DOCS", "docs.jsonl").rstrip()
    command = re.sub(r" --(epochs|steps) \d+", "", command)
    return command + next(
        (more for start, more in SHORT_OPTIONS.items() if line.startswith(start)), ""
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that holds only some documents."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    rows = [{"name": str(n), "text": f"the capital of France is {n}"} for n in range(50)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "docs.jsonl").write_text(lines, encoding="utf-8")
    return tmp_path


def outputs_of(lines: list[str]) -> dict[str, str]:
    return {line: run_block(Block("bash", shortened(line))) for line in lines}


def test_commands_on_capitals_run(folder: Path):
    lines = [line for line in ON_CAPITALS if not line.startswith(DRAWING)]
    printed = outputs_of(lines)
    [answer] = [
        text for line, text in printed.items() if "--show-evidence" in line and "rag" in line
    ]
    assert "looked up" in answer and "the capital of" in answer
    [by_index] = [text for line, text in printed.items() if "--index by-rag" in line]
    assert "anew" not in by_index, "its vectors were made by this very run"
    assert {path.name for path in (folder / "runs").iterdir()} == {"rag", "fae"}


@pytest.mark.slow
def test_all_commands_run(folder: Path):
    pytest.importorskip("bm25s")
    pytest.importorskip("faiss")
    printed = outputs_of(COMMANDS)
    [answer] = [text for line, text in printed.items() if "domesticated feline" in line]
    assert "cat" in answer
    assert (folder / "path.svg").stat().st_size > 1000
    assert (folder / "pictures" / "inspection.html").exists()
