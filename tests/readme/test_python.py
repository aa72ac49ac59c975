"""docs/python.md: its code runs, and its table names every command and what it is in Python."""

from __future__ import annotations

import re
from pathlib import Path

import typer

import lmlab
from lmlab.cli.main import app

from .page_runner import blocks_of, run_page

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")


def test_code_runs_and_prints_what_the_page_shows(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = [block for block in blocks_of(PAGE) if block.kind == "python"]
    page = "\n".join(
        f"```{kind}\n{code}```" for kind, code in (("python", "".join(b.code for b in blocks)),)
    )
    [(_, printed)] = run_page(page)
    shown = [block.code.splitlines() for block in blocks_of(PAGE) if block.kind == "text"]
    assert [line for lines in shown for line in lines if line not in printed.splitlines()] == []


def test_table_has_every_command_and_names_that_exist():
    rows = [line.split("|") for line in PAGE.splitlines() if line.startswith("|")][2:]
    commands = " ".join(re.sub(r"`[^`]*--[^`]*`", "", row[1]) for row in rows)
    for name in typer.main.get_command(app).commands:
        assert re.search(rf"`{name}\b", commands), name
    for cell in (row[2] for row in rows):
        for owner, name in re.findall(r"(lmlab|model)\.(\w+)", cell):
            assert hasattr(lmlab if owner == "lmlab" else lmlab.LanguageModel, name), name
