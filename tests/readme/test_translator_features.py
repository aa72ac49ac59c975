"""The commands of XLM in docs/translation.md and of CoVe in docs/tasks.md, on a few sentences."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from .page_runner import Block, blocks_of, run_block

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHORT_OPTIONS = {
    "lmlab train glove": " --size tiny",
    "lmlab train": " --size tiny --steps 2",
    "lmlab finetune": " --examples 60 --steps 2",
}
"""Options appended to a command, by its prefix."""
GERMAN = ["ein hund läuft", "zwei hunde laufen", "ein mann fährt fahrrad", "der mann schläft"]
ENGLISH = ["a dog runs", "two dogs run", "a man rides a bike", "the man sleeps"]


def section_blocks(page: str, heading: str) -> list[Block]:
    text = (DOCS / page).read_text(encoding="utf-8")
    [section] = re.findall(rf"^## {re.escape(heading)}$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return blocks_of(section)


def shortened(line: str) -> str:
    """The command with a minimal training budget."""
    command = line.partition("  #")[0].rstrip()
    added = (more for start, more in SHORT_OPTIONS.items() if line.startswith(start))
    return command + next(added, "")


def run_commands(block: Block) -> dict[str, str]:
    return {
        line: run_block(Block("bash", shortened(line))) for line in block.code.splitlines() if line
    }


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """multi30k's files with a few sentences, in DATA."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "DATA" / "multi30k"
    folder.mkdir(parents=True)
    for split, count in (("train", 10), ("val", 1), ("test_2016_flickr", 1)):
        for ending, lines in (("de", GERMAN), ("en", ENGLISH)):
            text = "".join(f"{line}\n" for line in lines * count)
            (folder / f"{split}.{ending}").write_text(text, encoding="utf-8")
    return tmp_path


def test_commands_of_xlm_run(corpus: Path):
    [block] = section_blocks("translation.md", "Cross-lingual masked language models (XLM)")
    printed = run_commands(block)
    [given] = [text for line, text in printed.items() if "--source" in line]
    assert "ein hund läuft | a dog runs" in given and "each text given its source" in given
    [german] = [text for line, text in printed.items() if "lmlab fill" in line]
    assert german.startswith("ein <mask> läuft") and "probability" in german
    assert np.load(corpus / "german.npz")["vectors"].shape == (1, 16)


def test_commands_of_cove_run(corpus: Path):
    commands, code = section_blocks("tasks.md", "Features from a translator (CoVe)")
    printed = run_commands(commands)
    assert any("accuracy" in text for text in printed.values())
    shape = 'print("shape", *features.shape, words.vectors.shape[1], states.shape[1])\n'
    text = run_block(Block("python", code.code + shape))
    rows, width, static, contextual = map(int, text.split()[1:])
    assert (rows, width) == (2, static + contextual) and min(static, contextual) > 0
