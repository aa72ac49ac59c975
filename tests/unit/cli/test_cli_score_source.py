"""`lmlab score` and `lmlab compare` on a translator trained for a moment."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from lmlab.api import load
from lmlab.core.errors import UserError
from lmlab.training.train import train

from .conftest import Command, Result

LINES = ["eins zwei\tone two", "zwei\ttwo", "drei eins\tthree one"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("numbers") / "pairs.tsv"
    file.write_text("\n".join(LINES * 40) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "numbers"
    words = {"settings": {"learning_rate": 0.02}, "size": "tiny", "steps": 30, "quiet": True}
    train("seq2seq", data=str(pairs), out=out, **words)
    return out


def test_pairs_of_a_file_and_of_the_command_line_score_the_same(
    lmlab: Command, run: Path, tmp_path: Path
):
    table, rows = tmp_path / "some.tsv", tmp_path / "some.jsonl"
    table.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    sides = [line.split("\t") for line in LINES]
    lines = [json.dumps({"source": source, "target": text}) for source, text in sides]
    rows.write_text("\n".join(lines) + "\n", encoding="utf-8")
    told = [word for source, text in sides for word in ("--source", source, "--text", text)]
    found = json.loads(lmlab("score", run, *told, "--json").out)
    assert [[each["source"], each["text"]] for each in found] == sides
    assert found == json.loads(lmlab("score", run, table, "--json").out)
    assert found == json.loads(lmlab("score", run, rows, "--json").out)
    assert all(each["kind"] == "exact" and each["convention"]["source"] for each in found)
    assert [t["token"] for t in found[0]["per_token"]] == ["one", "two", "</s>"]
    in_python = load(run).score([text for _, text in sides], sources=[s for s, _ in sides])
    assert [each.total for each in in_python] == [each["total"] for each in found]
    shown = lmlab("score", run, table, "--per-token").out.splitlines()
    assert shown[0].endswith("\teins zwei | one two")
    assert "each text given its source" in shown[-1]


def test_lines_of_a_pipe_have_two_columns(
    lmlab: Command, run: Path, monkeypatch: pytest.MonkeyPatch
):
    def piped(text: str) -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return lmlab("score", run, "-", "--json")

    (found,) = json.loads(piped("eins zwei\tone two\n").out)
    (expected,) = load(run).score(["one two"], ["eins zwei"])
    assert (found["source"], found["total"]) == ("eins zwei", expected.total)
    assert "line 1: expected a source, a tab and a text" in piped("one two\n").err


def test_a_translation_scores_what_it_was_found_with(run: Path):
    model = load(run)
    for found in model.translate(["eins zwei", "drei"], method="beam", best=3):
        ended = [each for each in found.candidates if each.finished]
        assert ended
        scores = model.score([each.text for each in ended], sources=[found.source] * len(ended))
        assert [s.total for s in scores] == pytest.approx([e.log_prob for e in ended], abs=1e-4)


def test_translators_are_compared_on_what_they_were_trained_on(lmlab: Command, run: Path):
    (row,) = json.loads(lmlab("compare", run, "--json").out)["rows"]
    assert row["perplexity"] > 1 and row["bits_per_character"] > 0
    assert "each given its source" in lmlab("compare", run).out


def test_what_is_missing_or_too_much_is_told_in_a_sentence(
    lmlab: Command, run: Path, pairs: Path, tmp_path: Path
):
    single = tmp_path / "single.txt"
    single.write_text("one two\n", encoding="utf-8")
    for words, said in [
        ([single], "scores a text given its source, got no sources; give a file of pairs"),
        (["--given", "one", "--text", "two"], "got no sources"),
        (
            ["--source", "a", "--source", "b", "--text", "c"],
            "as many texts as sources, got 1 and 2",
        ),
        ([pairs, "--source", "a"], "--source goes with --text"),
        (
            ["--source", "a", "--text", "b", "--given", "c"],
            "--given and --conditional do not apply",
        ),
    ]:
        found = lmlab("score", run, *words)
        assert found.code == 2 and said in found.err and found.err.count("\n") == 1
    with pytest.raises(UserError, match="a list of sources, got one source"):
        load(run).score(["one"], sources="eins")


def test_a_text_that_is_scored_as_a_whole_tells_so_instead_of_zeros(
    lmlab: Command, pairs: Path, tmp_path: Path
):
    """DPR's score belongs to no token: 0 nats would say that each of them is certain."""
    train("dpr", data=str(pairs), out=tmp_path / "run", size="tiny", steps=2, quiet=True)
    told = ("score", tmp_path / "run", "--source", "zwei", "--text", "one two")
    for option in ("--per-token", "--per-word"):
        found = lmlab(*told, option)
        first, second, *_ = found.out.splitlines()
        assert found.code == 0 and first.endswith("zwei | one two")
        assert second.strip().startswith("the text is scored as a whole")
        assert "\t0.0000" not in found.out
    [score] = json.loads(lmlab(*told, "--json").out)
    assert score["per_token"] == [] and score["tokens"] == 3
    assert score["total"] == pytest.approx(score["per_sequence"]) and score["total"] != 0
    table = lmlab(*told, "--csv")
    assert table.code == 2 and "does not score texts as a whole" in table.err
