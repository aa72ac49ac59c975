"""`lmlab sample`: decoding methods, seeds, prefixes, sources and errors."""

from __future__ import annotations

import json
import math

import pytest


def test_one_text_per_line_determined_by_seed(lmlab, runs) -> None:
    first = lmlab("sample", runs["ngram"], "-n", "4", "--seed", "5").out
    assert len(first.splitlines()) == 4
    assert lmlab("sample", runs["ngram"], "-n", "4", "--seed", "5").out == first
    assert lmlab("sample", runs["ngram"], "-n", "4", "--seed", "6").out != first


@pytest.mark.parametrize(
    "method",
    [
        ("--method", "ancestral"),
        ("--method", "ancestral", "--temperature", "0.7", "--top-k", "5", "--top-p", "0.9"),
        ("--method", "greedy"),
        ("--method", "beam", "--beam", "3", "--length-penalty", "0.5"),
    ],
)
def test_log_prob_equals_that_of_score(lmlab, runs, method) -> None:
    command = ("sample", runs["ngram"], *method, "--max-length", "40", "--json")
    [generated] = json.loads(lmlab(*command).out)
    assert math.isclose(
        generated["log_prob"], continuation_score(lmlab, runs, generated), rel_tol=1e-5
    )


def continuation_score(lmlab, runs, generated, skip: int = 0) -> float:
    """Score of the tokens after the first `skip`; the end token counts only if generated."""
    [score] = json.loads(lmlab("score", runs["ngram"], "--text", generated["text"], "--json").out)
    tokens = score["per_token"][skip:] if generated["finished"] else score["per_token"][skip:-1]
    assert generated["tokens"] == len(tokens)
    return sum(token["log_prob"] for token in tokens)


def test_prefix_is_kept_and_not_scored(lmlab, runs) -> None:
    [generated] = json.loads(lmlab("sample", runs["ngram"], "--prefix", "the dog", "--json").out)
    assert generated["text"].startswith("the dog")
    expected = continuation_score(lmlab, runs, generated, skip=2)
    assert math.isclose(generated["log_prob"], expected, rel_tol=1e-5)


def test_beam_texts_are_sorted_by_log_prob(lmlab, runs) -> None:
    command = ("sample", runs["ngram"], "--method", "beam", "-n", "3", "--json")
    log_probs = [generated["log_prob"] for generated in json.loads(lmlab(*command).out)]
    assert len(log_probs) == 3
    assert log_probs == sorted(log_probs, reverse=True)


def test_max_length_limits_new_tokens(lmlab, runs) -> None:
    command = ("sample", runs["lstm"], "--max-length", "1", "--prefix", "the", "--json")
    [generated] = json.loads(lmlab(*command).out)
    assert generated["tokens"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-n", "0"), "the number of texts must be a whole number, 1 or more, got 0"),
        (("-n", "-3"), "the number of texts must be a whole number, 1 or more, got -3"),
        (("--max-length", "0"), "greatest length must be a whole number, 1 or more, got 0"),
        (("--temperature", "0"), "temperature must be above 0"),
        (("--temperature", "nan"), "temperature must be above 0"),
        (("--top-k", "0"), "top-k must be 1 or more"),
        (("--top-p", "1.5"), "top-p must be above 0 and at most 1"),
        (("--method", "bean"), "did you mean 'beam'"),
        (("--method", "beam", "--beam", "0"), "beam width must be 1 or more"),
        (("--method", "greedy", "--top-k", "3"), "top-k does not apply to the method greedy"),
        (
            ("--method", "beam", "--temperature", "2"),
            "temperature does not apply to the method beam",
        ),
        (("--beam", "3"), "beam does not apply to the method ancestral"),
    ],
)
def test_invalid_arguments_are_refused(lmlab, runs, arguments, message) -> None:
    result = lmlab("sample", runs["lstm"], *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_source_conditioned_sample_equals_translate(lmlab, tmp_path) -> None:
    (tmp_path / "pairs.tsv").write_text("eins\tone\nzwei\ttwo\n" * 20, encoding="utf-8")
    run = tmp_path / "run"
    budget = ("--size", "tiny", "--steps", "3", "--data", tmp_path / "pairs.tsv")
    assert lmlab("train", "seq2seq", "--out", run, *budget).code == 0
    alone = lmlab("sample", run)
    assert (alone.code, alone.out) == (2, "")
    assert "--source" in alone.err
    assert "lmlab translate" in alone.err
    options = ("--method", "greedy", "--max-length", "4")
    for source in ("eins", "zwei"):
        [generated] = json.loads(lmlab("sample", run, "--source", source, *options, "--json").out)
        output = json.loads(lmlab("translate", run, "--text", source, *options, "--json").out)
        assert generated["text"] == output["candidates"][0]["text"]
        assert math.isclose(
            generated["log_prob"], output["candidates"][0]["log_prob"], rel_tol=1e-5
        )
    assert len(lmlab("sample", run, "--source", "eins", "-n", "3").out.splitlines()) == 3


def test_source_is_refused_by_unconditional_models(lmlab, runs) -> None:
    refused = lmlab("sample", runs["ngram"], "--source", "the")
    assert (refused.code, refused.out) == (2, "")
    assert "does not condition on a source; remove it" in refused.err
