"""`lmlab score` and `lmlab compare` on a briefly trained translation model."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.training.train import train
from lmlab.verbs.loading import load

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
    options = {"settings": {"learning_rate": 0.02}, "size": "tiny", "steps": 30, "quiet": True}
    train("seq2seq", data=str(pairs), out=out, **options)
    return out


def test_pairs_from_files_and_options_score_the_same(lmlab: Command, run: Path, tmp_path: Path):
    table, rows = tmp_path / "some.tsv", tmp_path / "some.jsonl"
    table.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    sides = [line.split("\t") for line in LINES]
    lines = [json.dumps({"source": source, "target": text}) for source, text in sides]
    rows.write_text("\n".join(lines) + "\n", encoding="utf-8")
    arguments = [word for source, text in sides for word in ("--source", source, "--text", text)]
    output = json.loads(lmlab("score", run, *arguments, "--json").out)
    assert [[record["source"], record["text"]] for record in output] == sides
    assert output == json.loads(lmlab("score", run, table, "--json").out)
    assert output == json.loads(lmlab("score", run, rows, "--json").out)
    assert all(record["kind"] == "exact" and record["convention"]["source"] for record in output)
    assert [t["token"] for t in output[0]["per_token"]] == ["one", "two", "</s>"]
    in_python = load(run).score([text for _, text in sides], sources=[s for s, _ in sides])
    assert [record.total for record in in_python] == [record["total"] for record in output]
    shown = lmlab("score", run, table, "--per-token").out.splitlines()
    assert shown[0].endswith("\teins zwei | one two")
    assert "each text given its source" in shown[-1]


def test_stdin_lines_have_source_and_text_columns(
    lmlab: Command, run: Path, monkeypatch: pytest.MonkeyPatch
):
    def piped(text: str) -> Result:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return lmlab("score", run, "-", "--json")

    (record,) = json.loads(piped("eins zwei\tone two\n").out)
    (expected,) = load(run).score(["one two"], ["eins zwei"])
    assert (record["source"], record["total"]) == ("eins zwei", expected.total)
    assert "line 1: expected a source, a tab and a text" in piped("one two\n").err


def test_score_of_a_translation_equals_its_beam_log_prob(run: Path):
    model = load(run)
    for translation in model.translate(["eins zwei", "drei"], method="beam", best=3):
        ended = [candidate for candidate in translation.candidates if candidate.finished]
        assert ended
        scores = model.score(
            [candidate.text for candidate in ended], sources=[translation.source] * len(ended)
        )
        assert [s.total for s in scores] == pytest.approx([e.log_prob for e in ended], abs=1e-4)


def test_compare_translators_on_their_training_corpus(lmlab: Command, run: Path):
    (row,) = json.loads(lmlab("compare", run, "--json").out)["rows"]
    assert row["perplexity"] > 1 and row["bits_per_character"] > 0
    assert "each given its source" in lmlab("compare", run).out


def test_source_option_errors_are_one_sentence(
    lmlab: Command, run: Path, pairs: Path, tmp_path: Path
):
    single = tmp_path / "single.txt"
    single.write_text("one two\n", encoding="utf-8")
    for arguments, message in [
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
        result = lmlab("score", run, *arguments)
        assert result.code == 2 and message in result.err and result.err.count("\n") == 1
    with pytest.raises(UserError, match="a list of sources, got one source"):
        load(run).score(["one"], sources="eins")


def test_sequence_level_score_shows_no_token_scores(lmlab: Command, pairs: Path, tmp_path: Path):
    """DPR scores whole texts: printing 0 nats per token would claim certainty."""
    train("dpr", data=str(pairs), out=tmp_path / "run", size="tiny", steps=2, quiet=True)
    command = ("score", tmp_path / "run", "--source", "zwei", "--text", "one two")
    for option in ("--per-token", "--per-word"):
        result = lmlab(*command, option)
        first, second, *_ = result.out.splitlines()
        assert result.code == 0 and first.endswith("zwei | one two")
        assert second.strip().startswith("the text is scored as a whole")
        assert "\t0.0000" not in result.out
    [score] = json.loads(lmlab(*command, "--json").out)
    assert score["per_token"] == [] and score["tokens"] == 3
    assert score["total"] == pytest.approx(score["per_sequence"]) and score["total"] != 0
    table = lmlab(*command, "--csv")
    assert table.code == 2 and "does not score texts as a whole" in table.err
