"""`lmlab inspect`: printed list, figures, JSON and errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def imported(lmlab, runs, tmp_path: Path) -> Path:
    """The n-gram model imported from an ARPA file: a run without a corpus."""
    arpa, copied = tmp_path / "ngram.arpa", tmp_path / "copied"
    assert lmlab("export-arpa", runs["ngram"], arpa).code == 0
    assert lmlab("import-arpa", arpa, "--out", copied).code == 0
    return copied


def test_output_lists_files_with_captions(lmlab, runs, tmp_path: Path) -> None:
    texts = ("the cat sleeps", "a dog runs")
    result = lmlab("inspect", runs["ngram"], "--text", *texts, "--out", tmp_path)
    assert result.code == 0
    assert result.err == ""
    lines = result.out.splitlines()
    assert lines[-1] == f"{tmp_path / 'inspection.html'}: all of them on a page."
    surprisal, second = (line for line in lines if "surprisal" in line)
    where = tmp_path / "surprisal-1.svg"
    assert surprisal.startswith(f"{where} and .png: surprisal “the cat sleeps”")
    assert "“a dog runs”" in second
    assert "in nats: 0 is certain" in surprisal
    for line in lines[:-1]:
        svg = Path(line.partition(" and ")[0])
        assert svg.is_file()
        assert svg.with_suffix(".png").is_file()


def test_json_is_one_document(lmlab, runs, tmp_path: Path) -> None:
    arguments = ("--text", "the cat", "--words", "cat,the", "--out", tmp_path)
    output = json.loads(lmlab("inspect", runs["lstm"], *arguments, "--json").out)
    assert set(output) == {"page", "pictures", "remarks"}
    names = [figure["name"] for figure in output["pictures"]]
    assert {"surprisal", "layer-1-forget-gate", "norms", "gradient"} <= set(names)
    [table] = [p["table"] for p in output["pictures"] if p["name"] == "neighbours-embedding"]
    assert [row[0][0] for row in table["rows"]] == ["cat", "the"]


def test_several_runs_with_default_texts(lmlab, runs, imported, tmp_path: Path) -> None:
    result = lmlab("inspect", imported, runs["ngram"], "--out", tmp_path, "--json")
    output = json.loads(result.out)
    together = [figure["name"] for figure in output["pictures"] if figure["run"] == ""]
    assert together == ["surprisal-1", "surprisal-2", "surprisal-3"]
    assert {figure["run"] for figure in output["pictures"]} == {"", "copied", "ngram"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no/such/run",), "there is no run at no/such/run"),
        ((), "missing argument 'RUN...'"),
        (("RUN", "--words", "kat"), "did you mean 'cat'"),
        (("RUN", "--text", ""), "got an empty text"),
        (("RUN", "RUN"), "given twice"),
        (("RUN", "--wrds", "a"), "did you mean --words"),
    ],
)
def test_usage_errors_are_one_sentence_and_exit_code_2(lmlab, runs, arguments, message) -> None:
    filled = [runs["lstm"] if argument == "RUN" else argument for argument in arguments]
    result = lmlab("inspect", *filled)
    assert result.code == 2
    assert result.out == ""
    assert message in result.err.lower() or message in result.err
    assert result.err.count("\n") == 1
