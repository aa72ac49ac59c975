"""`lmlab fill`: masks, joint filling, blanks of any length, candidates and errors."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest

from lmlab.cli.main import main


@pytest.fixture(scope="module")
def fill_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A masked LM, an infilling model and one with a joint distribution, briefly trained."""
    folder = tmp_path_factory.mktemp("filling")
    for system in ("unilm", "glm", "span-joint"):
        budget = ("--size", "tiny", "--steps", "6", "--data", "grammar")
        assert main(["train", system, "--out", str(folder / system), *budget]) == 0
    return {path.name: path for path in folder.iterdir()}


def test_table_lists_top_tokens_per_mask(lmlab, fill_runs) -> None:
    result = lmlab("fill", fill_runs["unilm"], "the <mask> sees a [MASK]", "--top", "3")
    assert result.code == 0
    text, header, *rows = result.out.splitlines()
    assert text == "the <mask> sees a [MASK]"
    assert header.split() == ["gap", "text", "probability", "nats"]
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == ["1", "1", "1", "2", "2", "2"]
    for row in cells:
        assert math.exp(float(row[3])) == pytest.approx(float(row[2]), abs=1e-4)


def test_json_has_probabilities_and_mask_offsets(lmlab, fill_runs) -> None:
    command = ("fill", fill_runs["unilm"], "the <mask> sees a [MASK]", "--top", "2", "--json")
    [record] = json.loads(lmlab(*command).out)
    assert [(gap["start"], gap["end"]) for gap in record["masks"]] == [(4, 10), (18, 24)]
    for gap in record["masks"]:
        first, second = gap["options"]
        assert first["log_prob"] >= second["log_prob"]
        assert first["probability"] == pytest.approx(math.exp(first["log_prob"]))
        assert first["share"] is None


@pytest.mark.parametrize("run", ["unilm", "span-joint"])
def test_joint_fillings_are_ranked_by_total_log_prob(lmlab, fill_runs, run) -> None:
    command = ("fill", fill_runs[run], "the <mask> sees a [MASK]", "--joint", "--json")
    [record] = json.loads(lmlab(*command).out)
    totals = [candidate["log_prob"] for candidate in record["candidates"]]
    assert len(totals) == 5
    assert totals == sorted(totals, reverse=True)
    assert all(len(candidate["answers"]) == 2 for candidate in record["candidates"])


@pytest.mark.parametrize("options", [(), ("--sample",)])
def test_joint_filling_reports_score_kind_and_order(lmlab, fill_runs, options) -> None:
    """A masked LM scores by a chain of conditionals in some order; span-joint is exact."""
    text = "the <mask> sees a [MASK]"
    for run, kind, order in (
        ("unilm", "pseudo", "gap by gap from left to right"),
        ("span-joint", "exact", "all gaps at once"),
    ):
        command = ("fill", fill_runs[run], text, "--joint", *options)
        [record] = json.loads(lmlab(*command, "--json").out)
        assert record["kind"] == kind and record["order"].startswith(order)
        last = lmlab(*command).out.splitlines()[-1]
        assert last.startswith(f"kind {kind} (") and order in last
    # A single mask is exact; masks filled independently have no joint score.
    [single] = json.loads(lmlab("fill", fill_runs["unilm"], "a <mask>", "--joint", "--json").out)
    assert single["kind"] == "exact"
    [independent] = json.loads(lmlab("fill", fill_runs["unilm"], text, "--json").out)
    assert independent["kind"] is None and independent["order"] is None


@pytest.mark.parametrize("run", ["unilm", "span-joint"])
def test_joint_samples_depend_on_the_seed(lmlab, fill_runs, run) -> None:
    command = ("fill", fill_runs[run], "the <mask> sees a [MASK]", "--joint", "--sample", "--json")
    sampled = [lmlab(*command, "--seed", seed) for seed in (1, 1, 2)]
    assert [result.code for result in sampled] == [0, 0, 0]
    assert sampled[0].out == sampled[1].out != sampled[2].out
    [record] = json.loads(sampled[0].out)
    assert len(record["candidates"]) == 5
    assert all(candidate["log_prob"] < 0 for candidate in record["candidates"])


def test_joint_with_blanks_is_refused(lmlab, fill_runs) -> None:
    result = lmlab("fill", fill_runs["glm"], "the <mask>", "--joint", "--blanks")
    assert result.code != 0
    assert "always filled jointly" in result.err


def test_variable_length_blanks_by_beam_and_sampling(lmlab, fill_runs) -> None:
    text = "the <mask> sees a <mask>"
    [best] = json.loads(lmlab("fill", fill_runs["glm"], text, "--json").out)
    totals = [candidate["log_prob"] for candidate in best["candidates"]]
    assert totals == sorted(totals, reverse=True)
    assert len({tuple(candidate["answers"]) for candidate in best["candidates"]}) == 5
    sampled = [
        lmlab("fill", fill_runs["glm"], text, "--sample", "--seed", seed, "--json").out
        for seed in (1, 1, 2)
    ]
    assert sampled[0] == sampled[1] != sampled[2]
    table = lmlab("fill", fill_runs["glm"], text, "--top", "2").out.splitlines()
    assert table[1].split() == ["nats", "gap", "1", "gap", "2", "text"]
    assert len(table) == 4


def test_among_ranks_only_the_candidates(lmlab, fill_runs) -> None:
    for run in ("unilm", "glm"):
        command = ("fill", fill_runs[run], "the <mask> sleeps", "--among", "dog", "--among", "cat")
        [record] = json.loads(lmlab(*command, "--json").out)
        options = record["masks"][0]["options"]
        assert {option["text"] for option in options} == {"dog", "cat"}
        assert sum(option["share"] for option in options) == pytest.approx(1.0)
        for option in options:
            assert option["probability"] == pytest.approx(math.exp(option["log_prob"]))
        header = lmlab(*command).out.splitlines()[1]
        assert header.split()[-4:] == ["nats", "share", "of", "candidates"]


def test_texts_from_arguments_file_and_stdin_agree(lmlab, fill_runs, tmp_path, monkeypatch) -> None:
    lines = ["the <mask> sleeps", "a dog <mask>"]
    file = tmp_path / "gaps.txt"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    from_arguments = lmlab("fill", fill_runs["unilm"], *lines, "--json").out
    assert len(json.loads(from_arguments)) == 2
    assert lmlab("fill", fill_runs["unilm"], "--file", file, "--json").out == from_arguments
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert lmlab("fill", fill_runs["unilm"], "-", "--json").out == from_arguments


def test_unknown_words_are_reported_once(lmlab, fill_runs) -> None:
    result = lmlab("fill", fill_runs["unilm"], "zebra <mask>", "zebra <mask>")
    assert result.err.count("does not know 'zebra'") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_usage_errors_are_one_sentence(lmlab, fill_runs, arguments, message) -> None:
    result = lmlab("fill", fill_runs["unilm"], *arguments)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_causal_lm_is_refused_with_alternatives(lmlab, runs) -> None:
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
    totals = [candidate["log_prob"] for candidate in record["candidates"]]
    assert record["kind"] == "exact" and totals == sorted(totals, reverse=True)
    assert all(len(candidate["answers"]) == 2 for candidate in record["candidates"])
    sampled = [lmlab(*command, "--sample", "--seed", seed, "--json").out for seed in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]
    apart = lmlab("fill", encoder_decoders["mass"], "[MASK] dog [MASK]")
    assert apart.code == 2 and "masks must be adjacent" in apart.err
    among = lmlab("fill", encoder_decoders["mass"], "the [MASK] sleeps", "--among", "dog")
    assert among.code == 0 and "dog" in among.out
    blanks = json.loads(
        lmlab("fill", encoder_decoders["mass"], "[MASK] dog", "--blanks", "--json").out
    )
    assert len(blanks[0]["candidates"]) == 5 and blanks[0]["kind"] is None


def test_seq2seq_error_points_to_translate(lmlab, encoder_decoders) -> None:
    result = lmlab("fill", encoder_decoders["pegasus"], "the <mask> sleeps")
    assert result.code == 2 and "generates text from a source (lmlab translate RUN" in result.err
    assert "mass" in result.err and "bart, glm, mass, t5" in result.err
    translated = lmlab("translate", encoder_decoders["pegasus"], "--text", "the dog sleeps")
    assert translated.code == 0 and translated.out
