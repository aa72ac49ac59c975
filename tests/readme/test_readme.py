"""The READMEs: their five lines run, their links lead somewhere, and the two say the same."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .running import blocks_of, run_page

ROOT = Path(__file__).resolve().parents[2]
READMES = ("README.md", "README.zh.md")
ONE_SCREEN = 50


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", READMES)
def test_its_five_lines_run(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMLAB_CACHE", str(tmp_path / "cache"))
    [(block, printed)] = run_page(text_of(name))
    assert len(block.code.splitlines()) == 5
    assert re.search(r"-\d+\.\d{4} nats", printed)
    assert "regret" in printed
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", READMES)
def test_it_fits_a_screen_and_its_links_lead_somewhere(name: str):
    text = text_of(name)
    assert len(text.splitlines()) <= ONE_SCREEN
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert len(links) >= 8
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_the_links_of_the_documentation_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    inner = [link for link in links if "://" not in link]
    assert inner and [link for link in inner if not (page.parent / link).exists()] == []


def test_both_languages_tell_the_same():
    """The same links but for the link to each other, and the same commands on another corpus."""
    links = [re.findall(r"\]\(([^)#]+)\)", text_of(name))[1:] for name in READMES]
    assert links[0] == links[1]
    [english], [chinese] = (blocks_of(text_of(name)) for name in READMES)
    verbs = [[line.split()[1] for line in block.code.splitlines()] for block in (english, chinese)]
    assert verbs[0] == verbs[1] == ["train", "train", "score", "sample", "compare"]


def test_the_commands_it_names_are_in_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in READMES:
        targets = set(re.findall(r"make ([a-z]+)", text_of(name)))
        assert {"demo", "test"} <= targets
        assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_its_picture_is_whole():
    picture = (ROOT / "docs" / "images" / "grammar.svg").read_text(encoding="utf-8")
    drawn = "".join(ElementTree.fromstring(picture).itertext())
    for shown in ("lstm", "ngram", "entropy", "nats per token"):
        assert shown in drawn
