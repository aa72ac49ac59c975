"""`lmlab show-objective`: figure files, message and errors."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_svg_is_named_after_the_system(lmlab, working_folder: Path) -> None:
    result = lmlab("show-objective", "gpt", "--text", "甲 乙 cat")
    assert (result.code, result.err) == (0, "")
    assert result.out == "gpt.svg: inputs and targets of gpt.\n"
    written = (working_folder / "gpt.svg").read_text(encoding="utf-8")
    assert written.startswith("<svg")
    assert all(f">{word}<" in written for word in ("甲", "乙", "cat", "attention mask"))


def test_png_output_with_seed_and_settings(lmlab, working_folder: Path) -> None:
    command = ("show-objective", "roberta", "--seed", "3", "--set", "rate=0.5", "layers=1")
    result = lmlab(*command, "--out", "pictures/roberta.png")
    assert result.code == 0
    assert result.out.endswith("inputs and targets of roberta, sampled with seed 3.\n")
    assert (working_folder / "pictures" / "roberta.png").read_bytes().startswith(b"\x89PNG")


def test_run_uses_its_own_tokenizer(lmlab, runs, working_folder: Path) -> None:
    """A word unknown to the run is shown as <unk>."""
    result = lmlab("show-objective", runs["lstm"], "--text", "the cat zzz")
    assert result.code == 0
    written = (working_folder / "lstm.svg").read_text(encoding="utf-8")
    assert ">&lt;unk&gt;<" in written and ">zzz<" not in written
    # Without a text, an example text is used.
    assert lmlab("show-objective", runs["lstm"], "--out", "own.svg").code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_usage_errors_are_one_sentence(
    lmlab, runs, working_folder: Path, arguments, message
) -> None:
    filled = [runs["lstm"] if argument == "RUN" else argument for argument in arguments]
    result = lmlab("show-objective", *filled)
    assert result.code == 2
    assert message in result.err and result.err.count("\n") == 1
    assert list(working_folder.iterdir()) == []
