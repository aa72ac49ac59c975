"""docs/knowledge.md: its commands run from top to bottom, trainings small and for a moment.

Those on WordNet take a minute or two even so, because 117,659 glosses are tokenised, indexed and
linked: only what needs no more than the capitals is run by every `make test`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .running import Block, run_block

PAGE = Path(__file__).resolve().parents[2] / "docs" / "knowledge.md"
EVERY = re.findall(r"^    (lmlab .+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
COMMANDS = [line for line in EVERY if not re.search("import-hf|runs/encoder", line)]
"""Those with a published encoder need its folder: tests/parity/test_hf_sentence_encoders.py has
them on one that it makes."""
ON_CAPITALS = [line for line in COMMANDS if re.search("runs/(rag|fae)", line)]
DRAWING = "lmlab inspect"
BRIEF = {
    "lmlab train cogqa": " --size tiny --set length=128 --steps 2",
    "lmlab train": " --size tiny --steps 2",
    "lmlab finetune": " --examples 60 --steps 2",
}
"""What is put behind a command, by how it begins."""


def briefly(line: str) -> str:
    """The command as it is run here: on few documents, and training hardly at all."""
    command = line.partition("  #")[0].replace("DOCS", "docs.jsonl").rstrip()
    command = re.sub(r" --(epochs|steps) \d+", "", command)
    return command + next((more for start, more in BRIEF.items() if line.startswith(start)), "")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, but for some documents of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    rows = [{"name": str(n), "text": f"the capital of France is {n}"} for n in range(50)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "docs.jsonl").write_text(lines, encoding="utf-8")
    return tmp_path


def printed_by(lines: list[str]) -> dict[str, str]:
    return {line: run_block(Block("bash", briefly(line))) for line in lines}


def test_its_commands_on_the_capitals_run(folder: Path):
    lines = [line for line in ON_CAPITALS if not line.startswith(DRAWING)]
    printed = printed_by(lines)
    [told] = [text for line, text in printed.items() if "--show-evidence" in line and "rag" in line]
    assert "looked up" in told and "the capital of" in told
    [by_index] = [text for line, text in printed.items() if "--index by-rag" in line]
    assert "anew" not in by_index, "its vectors were made by this very run"
    assert {path.name for path in (folder / "runs").iterdir()} == {"rag", "fae"}


@pytest.mark.slow
def test_all_its_commands_run(folder: Path):
    pytest.importorskip("bm25s")
    pytest.importorskip("faiss")
    printed = printed_by(COMMANDS)
    [found] = [text for line, text in printed.items() if "domesticated feline" in line]
    assert "cat" in found
    assert (folder / "path.svg").stat().st_size > 1000
    assert (folder / "pictures" / "inspection.html").exists()
