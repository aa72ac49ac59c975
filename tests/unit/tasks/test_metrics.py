"""Task metrics by hand."""

from __future__ import annotations

import pytest

from lmlab.tasks import metrics


def test_accuracy_macro_f1_and_majority_by_hand():
    expected, predicted = ["a", "a", "b", "c"], ["a", "b", "b", "b"]
    assert metrics.accuracy(expected, predicted) == 0.5
    assert metrics.majority_accuracy(expected) == 0.5
    # a: 1 hit, 1 predicted, 2 expected: 2/3; b: 1 hit, 3 predicted, 1 expected: 2/4; c: no hit: 0.
    assert metrics.macro_f1(expected, predicted) == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)


def test_bio_tags_are_decoded_to_entities():
    tags = ["B-x", "I-x", "O", "I-y", "B-y", "I-x"]
    assert metrics.tagged_entities(tags) == {(0, 2, "x"), (3, 4, "y"), (4, 5, "y"), (5, 6, "x")}
    assert metrics.tagged_entities([]) == set()


def test_entity_f1_counts_whole_mentions():
    expected = [["B-x", "I-x", "O"], ["B-y", "O", "O"]]
    predicted = [["B-x", "O", "O"], ["B-y", "O", "B-x"]]
    # One of three predicted is right (the y), of two expected: 2 · 1 / (3 + 2).
    assert metrics.entity_f1(expected, predicted) == pytest.approx(2 / 5)
    assert metrics.entity_f1([["O"]], [["O"]]) == 1.0


def test_rouge_by_hand():
    expected, predicted = "the cat sat on the mat", "the cat the cat on mat"
    # Common words: the twice, cat once, on, mat: 5 of 6 on both sides.
    assert metrics.rouge_n(expected, predicted) == pytest.approx(2 * 5 / 12)
    # Bigrams in common: "the cat" once (of twice in the prediction).
    assert metrics.rouge_n(expected, predicted, 2) == pytest.approx(2 * 1 / 10)
    # The longest common subsequence is "the cat on mat" (or "the cat the mat"): 4.
    assert metrics.rouge_l(expected, predicted) == pytest.approx(2 * 4 / 12)
    assert metrics.rouge_n("北京", "北平") == pytest.approx(0.5)
    # One word has no bigram: the score is 0.
    assert metrics.rouge_n("cat", "dog", 2) == metrics.rouge_n("cat", "cat", 2) == 0


def test_token_f1():
    assert metrics.token_f1("san jose", "jose") == pytest.approx(2 * 1 / 3)
    assert metrics.token_f1("paris", "rome") == 0.0
