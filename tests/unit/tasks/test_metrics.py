"""Measures of answers, by arithmetic."""

from __future__ import annotations

import pytest

from lmlab.tasks import metrics


def test_accuracy_f1_and_majority():
    expected, found = ["a", "a", "b", "c"], ["a", "b", "b", "b"]
    assert metrics.accuracy(expected, found) == 0.5
    assert metrics.majority_accuracy(expected) == 0.5
    # a: 1 hit, told 1, wanted 2: 2/3; b: 1 hit, told 3, wanted 1: 2/4; c: no hit: 0.
    assert metrics.macro_f1(expected, found) == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)


def test_entities_are_what_the_tags_mark():
    tags = ["B-x", "I-x", "O", "I-y", "B-y", "I-x"]
    assert metrics.tagged_entities(tags) == {(0, 2, "x"), (3, 4, "y"), (4, 5, "y"), (5, 6, "x")}
    assert metrics.tagged_entities([]) == set()


def test_entity_f1_counts_whole_mentions():
    expected = [["B-x", "I-x", "O"], ["B-y", "O", "O"]]
    found = [["B-x", "O", "O"], ["B-y", "O", "B-x"]]
    # One of three told is right (the y), of two wanted: 2 · 1 / (3 + 2).
    assert metrics.entity_f1(expected, found) == pytest.approx(2 / 5)
    assert metrics.entity_f1([["O"]], [["O"]]) == 1.0


def test_rouge_by_hand():
    expected, found = "the cat sat on the mat", "the cat the cat on mat"
    # Common words: the twice, cat once, on, mat: 5 of 6 on both sides.
    assert metrics.rouge_n(expected, found) == pytest.approx(2 * 5 / 12)
    # Bigrams in common: "the cat" once (of twice in what was found).
    assert metrics.rouge_n(expected, found, 2) == pytest.approx(2 * 1 / 10)
    # The longest common subsequence is "the cat on mat" (or "the cat the mat"): 4.
    assert metrics.rouge_l(expected, found) == pytest.approx(2 * 4 / 12)
    assert metrics.rouge_n("北京", "北平") == pytest.approx(0.5)
    # One word has no pair of words: none is right.
    assert metrics.rouge_n("cat", "dog", 2) == metrics.rouge_n("cat", "cat", 2) == 0


def test_word_f1():
    assert metrics.token_f1("san jose", "jose") == pytest.approx(2 * 1 / 3)
    assert metrics.token_f1("paris", "rome") == 0.0
