"""`lmlab fill`."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from lmlab.cli.main import main


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A system that fills in tokens and one that fills in blanks, trained for a moment."""
    folder = tmp_path_factory.mktemp("filling")
    for system in ("unilm", "glm", "span-joint"):
        budget = ("--size", "tiny", "--steps", "6", "--data", "grammar")
        assert main(["train", system, "--out", str(folder / system), *budget]) == 0
    return {path.name: path for path in folder.iterdir()}


def test_a_table_of_the_best_tokens_of_each_gap(lmlab, filling) -> None:
    result = lmlab("fill", filling["unilm"], "the <mask> sees a [MASK]", "--top", "3")
    assert result.code == 0
    text, header, *rows = result.out.splitlines()
    assert text == "the <mask> sees a [MASK]"
    assert header.split() == ["gap", "text", "probability", "nats"]
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["1", "1", "1", "2", "2", "2"]
    for row in cells:
        assert math.exp(float(row[3])) == pytest.approx(float(row[2]), abs=1e-4)


def test_json_has_the_same_figures_and_where_the_gaps_are(lmlab, filling) -> None:
    command = ("fill", filling["unilm"], "the <mask> sees a [MASK]", "--top", "2", "--json")
    [record] = json.loads(lmlab(*command).out)
    assert [(gap["start"], gap["end"]) for gap in record["masks"]] == [(4, 10), (18, 24)]
    for gap in record["masks"]:
        first, second = gap["options"]
        assert first["log_prob"] >= second["log_prob"]
        assert first["probability"] == pytest.approx(math.exp(first["log_prob"]))
        assert first["share"] is None


@pytest.mark.parametrize("run", ["unilm", "span-joint"])
def test_gaps_together_are_ranked_by_their_sum(lmlab, filling, run) -> None:
    command = ("fill", filling[run], "the <mask> sees a [MASK]", "--joint", "--json")
    [record] = json.loads(lmlab(*command).out)
    totals = [filling["log_prob"] for filling in record["candidates"]]
    assert len(totals) == 5
    assert totals == sorted(totals, reverse=True)
    assert all(len(filling["answers"]) == 2 for filling in record["candidates"])


@pytest.mark.parametrize("drawn", [(), ("--sample",)])
def test_what_the_nats_of_gaps_together_are_is_told(lmlab, filling, drawn) -> None:
    """A masked model's are a chain of conditionals, in an order; span-joint has a joint."""
    text = "the <mask> sees a [MASK]"
    for run, kind, order in (
        ("unilm", "pseudo", "gap by gap from left to right"),
        ("span-joint", "exact", "all gaps at once"),
    ):
        command = ("fill", filling[run], text, "--joint", *drawn)
        [record] = json.loads(lmlab(*command, "--json").out)
        assert record["kind"] == kind and record["order"].startswith(order)
        last = lmlab(*command).out.splitlines()[-1]
        assert last.startswith(f"kind {kind} (") and order in last
    # One gap has nothing to agree with, and gaps one by one are no filling of the text.
    [alone] = json.loads(lmlab("fill", filling["unilm"], "a <mask>", "--joint", "--json").out)
    assert alone["kind"] == "exact"
    [apart] = json.loads(lmlab("fill", filling["unilm"], text, "--json").out)
    assert apart["kind"] is None and apart["order"] is None


@pytest.mark.parametrize("run", ["unilm", "span-joint"])
def test_gaps_together_are_drawn_by_their_seed(lmlab, filling, run) -> None:
    command = ("fill", filling[run], "the <mask> sees a [MASK]", "--joint", "--sample", "--json")
    drawn = [lmlab(*command, "--seed", seed) for seed in (1, 1, 2)]
    assert [result.code for result in drawn] == [0, 0, 0]
    assert drawn[0].out == drawn[1].out != drawn[2].out
    [record] = json.loads(drawn[0].out)
    assert len(record["candidates"]) == 5
    assert all(filling["log_prob"] < 0 for filling in record["candidates"])


def test_joint_blanks_are_told(lmlab, filling) -> None:
    result = lmlab("fill", filling["glm"], "the <mask>", "--joint", "--blanks")
    assert result.code != 0
    assert "always filled jointly" in result.err


def test_blanks_of_any_length_best_or_drawn(lmlab, filling) -> None:
    text = "the <mask> sees a <mask>"
    [best] = json.loads(lmlab("fill", filling["glm"], text, "--json").out)
    totals = [each["log_prob"] for each in best["candidates"]]
    assert totals == sorted(totals, reverse=True)
    assert len({tuple(each["answers"]) for each in best["candidates"]}) == 5
    drawn = [
        lmlab("fill", filling["glm"], text, "--sample", "--seed", seed, "--json").out
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    table = lmlab("fill", filling["glm"], text, "--top", "2").out.splitlines()
    assert table[1].split() == ["nats", "gap", "1", "gap", "2", "text"]
    assert len(table) == 4


def test_a_cloze_among_candidates(lmlab, filling) -> None:
    for run in ("unilm", "glm"):
        command = ("fill", filling[run], "the <mask> sleeps", "--among", "dog", "--among", "cat")
        [record] = json.loads(lmlab(*command, "--json").out)
        options = record["masks"][0]["options"]
        assert {option["text"] for option in options} == {"dog", "cat"}
        assert sum(option["share"] for option in options) == pytest.approx(1.0)
        for option in options:
            assert option["probability"] == pytest.approx(math.exp(option["log_prob"]))
        header = lmlab(*command).out.splitlines()[1]
        assert header.split()[-4:] == ["nats", "share", "of", "candidates"]


def test_texts_come_from_the_command_line_a_file_or_standard_input(
    lmlab, filling, tmp_path, monkeypatch
) -> None:
    lines = ["the <mask> sleeps", "a dog <mask>"]
    file = tmp_path / "gaps.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    given = lmlab("fill", filling["unilm"], *lines, "--json").out
    assert len(json.loads(given)) == 2
    assert lmlab("fill", filling["unilm"], "--file", file, "--json").out == given
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert lmlab("fill", filling["unilm"], "-", "--json").out == given


def test_unknown_words_are_told_once(lmlab, filling) -> None:
    result = lmlab("fill", filling["unilm"], "zebra <mask>", "zebra <mask>")
    assert result.err.count("does not know 'zebra'") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("the dog",), "has none; insert <mask> or [MASK] where"),
        (("the <maks>",), "did you mean '<mask>'?"),
        (("the [mask]",), "did you mean '[MASK]'?"),
        ((), "give exactly one of: a FILE, - for standard input, texts, --text, --file"),
        (("the <mask>", "--file", "x"), "exactly one of"),
        (
            ("--file", "no-such-file"),
            "there is no file no-such-file; check the path, or give a text by --text.\n",
        ),
        (("the <mask>", "--blanks"), "needs a system with Infill"),
        (("the <mask>", "--joint", "--blanks"), "leave out --joint"),
        (("the <mask>", "--top", "0"), "number of fillings must be 1 or more"),
        (("the <mask>", "--beam", "0"), "beam width must be 1 or more"),
        (("the <mask>", "--max-length", "0"), "maximum length must be 1 or more"),
        (("the <mask>", "--among", "zebra"), "one token of the vocabulary"),
        (("<mask> " + "the " * 80,), "must have at most"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(lmlab, filling, arguments, said) -> None:
    result = lmlab("fill", filling["unilm"], *arguments)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1


def test_a_system_that_can_not_fill_in_is_told_which_can(lmlab, runs) -> None:
    result = lmlab("fill", runs["lstm"], "the <mask>")
    assert result.code == 2
    assert "does not fill in masks; it continues a text (lmlab sample RUN --prefix" in result.err


@pytest.fixture(scope="module")
def encoder_decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("encoder-decoders")
    for system in ("mass", "pegasus"):
        budget = ("--size", "tiny", "--steps", "2", "--data", "grammar")
        assert main(["train", system, "--out", str(folder / system), *budget]) == 0
    return {path.name: path for path in folder.iterdir()}


def test_mass_generates_its_masked_span(lmlab, encoder_decoders) -> None:
    command = ("fill", encoder_decoders["mass"], "the [MASK] [MASK] a dog")
    [record] = json.loads(lmlab(*command, "--json").out)
    totals = [each["log_prob"] for each in record["candidates"]]
    assert record["kind"] == "exact" and totals == sorted(totals, reverse=True)
    assert all(len(each["answers"]) == 2 for each in record["candidates"])
    drawn = [lmlab(*command, "--sample", "--seed", seed, "--json").out for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    apart = lmlab("fill", encoder_decoders["mass"], "[MASK] dog [MASK]")
    assert apart.code == 2 and "masks must be adjacent" in apart.err
    among = lmlab(*command, "--among", "dog")
    assert among.code == 2 and "--among does not apply" in among.err


def test_what_generates_from_a_source_names_its_verb(lmlab, encoder_decoders) -> None:
    said = lmlab("fill", encoder_decoders["pegasus"], "the <mask> sleeps")
    assert said.code == 2 and "generates text from a source (lmlab translate RUN" in said.err
    assert "mass" in said.err and "bart, glm, t5" in said.err
    written = lmlab("translate", encoder_decoders["pegasus"], "--text", "the dog sleeps")
    assert written.code == 0 and written.out
