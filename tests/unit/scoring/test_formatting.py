"""Descriptions of conventions and summaries."""

from __future__ import annotations

import math
from dataclasses import replace

from lmlab.core.score import SCORE_KINDS, Convention, Summary
from lmlab.core.score_descriptions import KIND_DESCRIPTIONS, describe_convention
from lmlab.scoring.formatting import describe_summary

SENTENCES = Convention(tokenizer="word, 66 tokens", start=True, end=True)


def test_every_score_kind_is_described() -> None:
    assert tuple(KIND_DESCRIPTIONS) == SCORE_KINDS


def test_convention_description_names_what_differs() -> None:
    description = describe_convention(SENTENCES)
    assert description == (
        "word, 66 tokens in the vocabulary; start token given; end predicted; unknown words "
        "counted as one token; left to right"
    )
    stream = Convention(
        tokenizer="char, 30 tokens",
        start=False,
        end=False,
        state_carried=True,
        window=5,
        stride=2,
        max_length=9,
    )
    for part in (
        "no start token",
        "end not predicted",
        "state carried from line to line",
        "context of 5 tokens, stride 2",
        "cut at 9 tokens",
    ):
        assert part in describe_convention(stream)
    both_ways = describe_convention(replace(stream, window=8, lookahead=3))
    assert "context of 8 tokens, stride 2 in the middle of its windows" in both_ways
    assert "windows continue from line to line" in both_ways


def test_summary_has_perplexity_only_for_exact_scores() -> None:
    values = {"total": -20.0, "tokens": 10, "characters": 40, "utf8_bytes": 50}
    values |= {"sequences": 1, "unknown": 2}
    exact = describe_summary(Summary(kind="exact", convention=SENTENCES, **values))
    # 20 nats over 10 tokens are 2 per token; over 40 characters 0.5, which is 0.7213 bits.
    assert "1 text, 10 tokens (2 unknown), 40 characters" in exact
    assert f"perplexity {math.exp(2):.4f}, 2.0000 nats/token, 0.7213 bits/character" in exact
    # 20 / 50 nats are 0.4, or 0.5771 bits.
    assert "0.7213 bits/character, 0.5771 bits/byte; " in exact
    pseudo = describe_summary(Summary(kind="pseudo", convention=SENTENCES, **values))
    assert "no perplexity, as the scores are pseudo" in pseudo
