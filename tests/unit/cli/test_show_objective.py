"""`lmlab show-objective`: what it writes, what it says, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_an_svg_with_the_systems_name(lmlab, here: Path) -> None:
    result = lmlab("show-objective", "gpt", "--text", "甲 乙 cat")
    assert (result.code, result.err) == (0, "")
    assert result.out == "gpt.svg: inputs and targets of gpt.\n"
    written = (here / "gpt.svg").read_text(encoding="utf-8")
    assert written.startswith("<svg")
    assert all(f">{word}<" in written for word in ("甲", "乙", "cat", "who may see whom"))


def test_png_by_the_files_name_and_seed_and_settings(lmlab, here: Path) -> None:
    asked = ("show-objective", "roberta", "--seed", "3", "--set", "rate=0.5", "layers=1")
    result = lmlab(*asked, "--out", "pictures/roberta.png")
    assert result.code == 0
    assert result.out.endswith("inputs and targets of roberta, sampled with seed 3.\n")
    assert (here / "pictures" / "roberta.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_is_read_by_its_own_tokenizer(lmlab, runs, here: Path) -> None:
    """A word that the run does not know is <unk> to it."""
    result = lmlab("show-objective", runs["lstm"], "--text", "the cat zzz")
    assert result.code == 0
    written = (here / "lstm.svg").read_text(encoding="utf-8")
    assert ">&lt;unk&gt;<" in written and ">zzz<" not in written
    # Without a text it takes one of its own.
    assert lmlab("show-objective", runs["lstm"], "--out", "own.svg").code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("pcfg",), "no view to plot"),
        (("gpt", "--out", "gpt.jpg"), "must end in .svg or .png"),
        (("gpt", "--set", "layers"), "--set must be key=value"),
        (("RUN", "--set", "width=3"), "--set does not apply to a run"),
        (("no/such/run",), "there is no run at no/such/run"),
        (("gtp",), "no system called"),
        (("gpt", "--sed", "1"), "did you mean --seed"),
    ],
)
def test_a_mistake_is_one_sentence(lmlab, runs, here: Path, arguments, said) -> None:
    given = [runs["lstm"] if argument == "RUN" else argument for argument in arguments]
    result = lmlab("show-objective", *given)
    assert result.code == 2
    assert said in result.err and result.err.count("\n") == 1
    assert list(here.iterdir()) == []
