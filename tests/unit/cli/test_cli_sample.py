"""`lmlab sample`."""

from __future__ import annotations

import json
import math

import pytest


def test_a_text_a_line_and_the_seed_decides(lmlab, runs) -> None:
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
def test_its_log_probability_is_the_models_own(lmlab, runs, method) -> None:
    command = ("sample", runs["ngram"], *method, "--max-length", "40", "--json")
    [written] = json.loads(lmlab(*command).out)
    assert math.isclose(written["log_prob"], scored(lmlab, runs, written), rel_tol=1e-5)


def scored(lmlab, runs, written, given: int = 0) -> float:
    """What `score` gives the tokens after the first `given`, the end only if it came."""
    [score] = json.loads(lmlab("score", runs["ngram"], "--text", written["text"], "--json").out)
    tokens = score["per_token"][given:] if written["finished"] else score["per_token"][given:-1]
    assert written["tokens"] == len(tokens)
    return sum(token["log_prob"] for token in tokens)


def test_a_prefix_is_kept_and_costs_nothing(lmlab, runs) -> None:
    [written] = json.loads(lmlab("sample", runs["ngram"], "--prefix", "the dog", "--json").out)
    assert written["text"].startswith("the dog")
    expected = scored(lmlab, runs, written, given=2)
    assert math.isclose(written["log_prob"], expected, rel_tol=1e-5)


def test_n_texts_of_a_beam_are_its_best_in_order(lmlab, runs) -> None:
    command = ("sample", runs["ngram"], "--method", "beam", "-n", "3", "--json")
    found = [each["log_prob"] for each in json.loads(lmlab(*command).out)]
    assert len(found) == 3
    assert found == sorted(found, reverse=True)


def test_max_length_cuts_off(lmlab, runs) -> None:
    command = ("sample", runs["lstm"], "--max-length", "1", "--prefix", "the", "--json")
    [written] = json.loads(lmlab(*command).out)
    assert written["tokens"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
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
def test_what_it_refuses(lmlab, runs, arguments, said) -> None:
    result = lmlab("sample", runs["lstm"], *arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_a_translator_writes_given_a_source(lmlab, tmp_path) -> None:
    (tmp_path / "pairs.tsv").write_text("eins\tone\nzwei\ttwo\n" * 20, encoding="utf-8")
    run = tmp_path / "run"
    budget = ("--size", "tiny", "--steps", "3", "--data", tmp_path / "pairs.tsv")
    assert lmlab("train", "seq2seq", "--out", run, *budget).code == 0
    alone = lmlab("sample", run)
    assert (alone.code, alone.out) == (2, "")
    assert "--source" in alone.err
    assert "lmlab translate" in alone.err
    most = ("--method", "greedy", "--max-length", "4")
    for source in ("eins", "zwei"):
        [written] = json.loads(lmlab("sample", run, "--source", source, *most, "--json").out)
        found = json.loads(lmlab("translate", run, "--text", source, *most, "--json").out)
        assert written["text"] == found["candidates"][0]["text"]
        assert math.isclose(written["log_prob"], found["candidates"][0]["log_prob"], rel_tol=1e-5)
    assert len(lmlab("sample", run, "--source", "eins", "-n", "3").out.splitlines()) == 3


def test_who_is_given_nothing_takes_no_source(lmlab, runs) -> None:
    refused = lmlab("sample", runs["ngram"], "--source", "the")
    assert (refused.code, refused.out) == (2, "")
    assert "does not condition on a source; remove it" in refused.err
