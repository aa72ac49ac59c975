"""`lmlab score --method`, and continuations by --given and --conditional."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import lmlab as library
from lmlab.cli.main import main

TEXT = "the dog sees the cat"
MASKED = ("simple", "raw", "norm", "within-word")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked") / "bert"
    budget = ("--size", "tiny", "--steps", "2", "--data", "grammar")
    assert main(["train", "bert", "--out", str(folder), *budget]) == 0
    return folder


@pytest.mark.parametrize("method", MASKED)
def test_methods_for_masked_models(lmlab, bert, method) -> None:
    [record] = json.loads(lmlab("score", bert, "--text", TEXT, "--method", method, "--json").out)
    assert record["kind"] == ("unnormalised" if method in ("simple", "raw") else "pseudo")
    assert record["convention"]["method"] == method
    assert [token["token"] for token in record["per_token"]] == TEXT.split()
    total = sum(token["log_prob"] for token in record["per_token"])
    assert math.isclose(record["total"], total, rel_tol=1e-9)
    assert math.isclose(record["mean"], total / 5, rel_tol=1e-9)
    [same] = library.load(bert).score([TEXT], method=method)
    assert math.isclose(same.total, total, rel_tol=1e-6)


def test_k_mask_positions_and_mean(lmlab, bert) -> None:
    command = ("score", bert, "--text", TEXT, "--json", "--positions", "2, 5")
    [record] = json.loads(lmlab(*command, "--method", "k-mask").out)
    assert [token["token"] for token in record["per_token"]] == ["dog", "cat"]
    assert record["convention"]["positions"] == [2, 5]
    command = (*command, "--method", "raw-k-mask", "--head", "none", "--mean")
    [record] = json.loads(lmlab(*command).out)
    assert record["tokens"] == 5 and record["convention"]["mean"]
    line, summary = lmlab(*(part for part in command if part != "--json")).out.splitlines()
    assert line.startswith(f"{record['mean']:.4f} nats in the mean\t5 tokens")
    assert "method raw-k-mask at 2,5 without its head" in summary
    assert "no perplexity" in summary and "kind unnormalised" in summary
    assert "no bits/character" in summary


def test_bits_per_character_need_all_characters_scored(lmlab, bert) -> None:
    """Dividing the score of two tokens by the characters of five would be meaningless."""
    command = ("score", bert, "--text", TEXT, "--method")
    some = ("k-mask", "--positions", "2,5")
    assert ", no bits/character;" in lmlab(*command, *some).out.splitlines()[-1]
    assert ", no bits/character;" in lmlab(*command, "raw").out.splitlines()[-1]
    [whole] = library.load(bert).score([TEXT], method="norm")
    bits = -whole.total / math.log(2) / len(TEXT)
    assert (
        f", {bits:.4f} bits/character, {bits:.4f} bits/byte;"
        in lmlab(*command, "norm").out.splitlines()[-1]
    )
    [mean] = json.loads(lmlab(*command, *some, "--mean", "--json").out)
    assert mean["tokens"] == 5
    bits = -mean["total"] / math.log(2) / len(TEXT)
    summary = lmlab(*command, *some, "--mean").out.splitlines()[-1]
    assert f", {bits:.4f} bits/character, {bits:.4f} bits/byte;" in summary


@pytest.mark.parametrize(
    ("message", "options"),
    {
        "positions must be from 1 to 5 in a text of 5 tokens, got 9": (
            *("--method", "k-mask"),
            *("--positions", "1,9"),
        ),
        "must be numbers such as 1,3-5": ("--method", "k-mask", "--positions", "1;2"),
        "must be ascending, as 3-4, got '4-3'": ("--method", "k-mask", "--positions", "1,4-3"),
        "must name each token once, got 2 twice": ("--method", "k-mask", "--positions", "2,1-3"),
        "the prefix, which has 2": (
            *("--given", "the dog", "--method", "k-mask"),
            *("--positions", "1,2"),
        ),
        "the end token has no score": ("--given", "the dog", "--end"),
        "did you mean 'within-word'": ("--method", "within-words"),
        "needs a system with Energy": ("--method", "energy"),
        "this one's is pseudo": ("--method", "exact"),
        "for continuations": ("--end",),
    }.items(),
)
def test_usage_errors_are_one_sentence(lmlab, bert, message, options) -> None:
    result = lmlab("score", bert, "--text", TEXT, *options)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1


def test_method_is_refused_without_its_protocol(lmlab, runs) -> None:
    result = lmlab("score", runs["ngram"], "--text", TEXT, "--method", "norm")
    assert result.code == 2
    assert "Fill" in result.err and "bert" in result.err
    exact = json.loads(
        lmlab("score", runs["ngram"], "--text", TEXT, "--method", "exact", "--json").out
    )
    own = json.loads(lmlab("score", runs["ngram"], "--text", TEXT, "--json").out)
    assert exact[0]["total"] == own[0]["total"]


def test_given_scores_continuations_by_the_chain_rule(lmlab, runs, bert) -> None:
    command = ("score", runs["lstm"], "--given", "the dog", "--text", "sees the cat", "sleeps")
    output = json.loads(lmlab(*command, "--end", "--json").out)
    assert [record["continuation"] for record in output] == [" sees the cat", " sleeps"]
    texts = ["the dog sees the cat", "the dog sleeps"]
    whole = library.load(runs["lstm"]).score(texts)
    for record, score in zip(output, whole, strict=True):
        # By the chain rule: all tokens after the first two.
        expected = sum(token.log_prob for token in score.per_token[2:])
        assert math.isclose(record["total"], expected, rel_tol=1e-6)
        assert record["kind"] == "exact"
    *lines, kinds = lmlab(*command).out.splitlines()
    assert [line.split("\t")[1] for line in lines] == ["3 tokens", "1 token"]
    assert kinds.startswith("kind exact")
    masked = lmlab("score", bert, *command[2:])
    assert masked.out.splitlines()[-1].startswith("kind pseudo")


def test_conditional_scores_continuations_from_a_file(lmlab, runs, tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("the dog\tsleeps\na cat\tsees the dog\n", encoding="utf-8")
    output = json.loads(lmlab("score", runs["lstm"], file, "--conditional", "--json").out)
    assert [(record["prefix"], record["continuation"]) for record in output] == [
        ("the dog", " sleeps"),
        ("a cat", " sees the dog"),
    ]
    [same] = json.loads(
        lmlab("score", runs["lstm"], "--given", "a cat", "--text", "sees the dog", "--json").out
    )
    assert math.isclose(same["total"], output[1]["total"], rel_tol=1e-6)
    plain = tmp_path / "plain.txt"
    plain.write_text("the dog sleeps\n", encoding="utf-8")
    for given, message in (
        ((plain, "--conditional"), "holds single texts"),
        (("--text", "a", "--conditional"), "from a FILE"),
        ((file, "--conditional", "--per-word"), "whole texts"),
    ):
        result = lmlab("score", runs["lstm"], *given)
        assert result.code == 2 and message in result.err
