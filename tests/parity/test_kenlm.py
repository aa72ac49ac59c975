"""The n-gram engine against KenLM: `lmplz`'s files and scores, and KenLM's reader on our files.

The expected files come from KenLM's programs; fixtures/kenlm/regenerate.sh is how. `corpus` is
estimated as `lmplz -o N` does by default, the others are so small that `lmplz` needs
--discount_fallback. `corpus` ends in a new word that occurs twice in one context, which shows
whether we count it as `lmplz` does (see `_last_gram` in lmlab.inference.kneser_ney).
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from lmlab.core.vocabulary import SPECIAL_TOKENS, Vocabulary
from lmlab.inference.backoff import BackoffLookup, BackoffModel
from lmlab.inference.kneser_ney import KneserNeyFit, fit_kneser_ney
from lmlab.interop.arpa import read_arpa, write_arpa

FIXTURES = Path(__file__).parent / "fixtures" / "kenlm"
UNKNOWN, START, END = 1, 2, 3
LOG_10 = math.log(10)


def sentences(name: str) -> list[list[str]]:
    return [line.split() for line in (FIXTURES / name).read_text("utf-8").splitlines()]


def fitted(name: str, order: int) -> tuple[KneserNeyFit, list[str]]:
    """Our model of a fixture, and its words in the order of their first appearance."""
    ids = {word: i for i, word in enumerate(SPECIAL_TOKENS)}
    sequences = [
        [START, *(ids.setdefault(word, len(ids)) for word in sentence), END]
        for sentence in sentences(name)
    ]
    tokens, offsets = np.concatenate(sequences), np.cumsum([0] + [len(s) for s in sequences])
    vocabulary = Vocabulary(size=len(ids))
    return fit_kneser_ney(tokens, offsets, order=order, vocabulary=vocabulary), list(ids)


def encoded(sentence: list[str], words: list[str]) -> np.ndarray:
    ids = [words.index(word) if word in words else UNKNOWN for word in sentence]
    return np.array([START, *ids, END])


def looked_up(model: BackoffModel, sentence: list[str], words: list[str]) -> BackoffLookup:
    lookup = model.read(encoded(sentence, words))
    return BackoffLookup(log_probs=lookup.log_probs[1:], orders=lookup.orders[1:])


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["corpus", "tiny", "word", "gaps"])
def test_ngrams_equal_lmplz_file(name, order):
    """Seven digits are in the file, of single-precision numbers."""
    ours, words = fitted(f"{name}.txt", order)
    theirs, their_words = read_arpa(FIXTURES / f"{name}.{order}.arpa")
    assert words == their_words
    assert np.array_equal(ours.tables.keys, theirs.keys)
    assert np.array_equal(ours.tables.level_ends, theirs.level_ends)
    assert np.allclose(ours.tables.log_probs, theirs.log_probs, rtol=0, atol=2e-6)
    assert np.allclose(ours.tables.log_backoffs, theirs.log_backoffs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_discounts_equal_lmplz(order):
    printed = (FIXTURES / f"corpus.{order}.discounts").read_text().splitlines()
    expected = [[float(value) for value in re.findall(r"=(\S+)", line)] for line in printed]
    ours, _ = fitted("corpus.txt", order)
    assert ours.fallback_orders == ()
    assert np.allclose(ours.discounts, expected, rtol=1e-5)


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("name", ["tiny", "word", "gaps"])
def test_tiny_corpora_report_discount_fallback(name, order):
    ours, _ = fitted(f"{name}.txt", order)
    assert ours.fallback_orders == tuple(range(1, order + 1))


def expected_scores(order: int) -> list[list[tuple[int, float]]]:
    """For each held-out sentence and word what KenLM's `query` says: n-gram found, log10 p."""
    lines = (FIXTURES / f"heldout.{order}.scores").read_text("utf-8").splitlines()
    return [
        [(int(n), float(score)) for n, score in re.findall(r"=\d+ (\d) (\S+)\t", line)]
        for line in lines
    ]


@pytest.mark.parametrize("source", ["fitted", "lmplz's file"])
@pytest.mark.parametrize("order", [2, 3, 4, 5])
def test_scores_and_matched_orders_equal_kenlm_query(order, source):
    if source == "fitted":
        ours, words = fitted("corpus.txt", order)
        model = BackoffModel(ours.tables)
    else:
        tables, words = read_arpa(FIXTURES / f"corpus.{order}.arpa")
        model = BackoffModel(tables)
    expected = expected_scores(order)
    assert len(expected) == len(sentences("heldout.txt")) == 13
    for sentence, scores in zip(sentences("heldout.txt"), expected, strict=True):
        actual = looked_up(model, sentence, words)
        assert actual.log_probs / LOG_10 == pytest.approx([s for _, s in scores], abs=2e-6)
        assert actual.orders.tolist() == [n for n, _ in scores]


@pytest.mark.parametrize("name", ["corpus", "tiny", "word", "gaps"])
@pytest.mark.parametrize("order", [2, 3, 5])
def test_kenlm_reads_our_file(tmp_path, name, order):
    kenlm = pytest.importorskip("kenlm", reason="KenLM's reader is not installed")
    ours, words = fitted(f"{name}.txt", order)
    write_arpa(tmp_path / "ours.arpa", ours.tables, words)
    theirs = kenlm.Model(str(tmp_path / "ours.arpa"))
    assert theirs.order == order
    model = BackoffModel(ours.tables)
    for sentence in [*sentences("heldout.txt"), *sentences(f"{name}.txt")]:
        score = looked_up(model, sentence, words).log_probs.sum() / LOG_10
        assert theirs.score(" ".join(sentence)) == pytest.approx(score, abs=1e-5)


def test_kenlm_reads_our_file_with_unseen_words(tmp_path):
    """Three words of the vocabulary do not occur: each has its uniform share, in KenLM too."""
    kenlm = pytest.importorskip("kenlm", reason="KenLM's reader is not installed")
    vocabulary = Vocabulary(size=10)
    ours = fit_kneser_ney(
        np.array([2, 5, 6, 5, 3]), np.array([0, 5]), order=3, vocabulary=vocabulary
    )
    words = [*SPECIAL_TOKENS, "a", "b", "x", "y", "z"]
    write_arpa(tmp_path / "ours.arpa", ours.tables, words)
    theirs = kenlm.Model(str(tmp_path / "ours.arpa"))
    model = BackoffModel(ours.tables)
    for text in ["a b a", "x y z", "a x b", "unheard of", ""]:
        score = looked_up(model, text.split(), words).log_probs.sum() / LOG_10
        assert theirs.score(text) == pytest.approx(score, abs=1e-5)
    # The next word after "a" in KenLM's words; with </s> and <unk> they make a distribution.
    after_a = [theirs.score(f"a {word}", eos=False) for word in [*words[5:], "unheard"]]
    total = sum(10 ** (score - theirs.score("a", eos=False)) for score in after_a)
    stop = 10 ** (theirs.score("a") - theirs.score("a", eos=False))
    assert total + stop == pytest.approx(1, abs=1e-5)
