"""The READMEs: the quick start runs, links resolve, and both languages agree."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .page_runner import blocks_of, run_page

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README.zh.md")
ONE_SCREEN = 50


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", READMES)
def test_quick_start_runs(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    [(block, printed)] = run_page(text_of(name))
    assert len(block.code.splitlines()) == 5
    assert re.search(r"-\d+\.\d{4} nats", printed)
    assert "regret" in printed
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", READMES)
def test_readme_fits_one_screen_and_its_links_resolve(name: str):
    text = text_of(name)
    assert len(text.splitlines()) <= ONE_SCREEN
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert len(links) >= 8
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_links_in_docs_resolve(page: Path):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    inner = [link for link in links if "://" not in link]
    assert inner and [link for link in inner if not (page.parent / link).exists()] == []


def test_both_languages_have_the_same_links_and_commands():
    """The same links except those to each other, and the same commands on another corpus."""
    links = [re.findall(r"\]\(([^)#]+)\)", text_of(name))[1:] for name in READMES]
    assert links[0] == links[1]
    [english], [chinese] = (blocks_of(text_of(name)) for name in READMES)
    commands = [
        [line.split()[1] for line in block.code.splitlines()] for block in (english, chinese)
    ]
    assert commands[0] == commands[1] == ["train", "train", "score", "sample", "compare"]


def test_make_targets_named_in_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in READMES:
        targets = set(re.findall(r"make ([a-z]+)", text_of(name)))
        assert {"demo", "test"} <= targets
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_readme_figure_is_complete():
    figure = (ROOT / "docs" / "images" / "grammar.svg").read_text(encoding="utf-8")
    texts = "".join(ElementTree.fromstring(figure).itertext())
    for label in ("lstm", "ngram", "entropy", "nats per token"):
        assert label in texts
