"""Word vector queries, in two dimensions where the answers are obvious."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.data.tokenizers import train_tokenizer
from lmlab.data.wordnet.noun_similarity import SimilarityPair
from lmlab.scoring.word_vectors import WordVectors, read_similarity_pairs, spearman, word_vectors
from lmlab.training.system_building import build_tiny

PLANE = WordVectors(
    ["east", "north", "west", "northeast", "nowhere"],
    np.array([[2.0, 0], [0, 1], [-3, 0], [1, 1], [0, 0]]),
)


def test_nearest_neighbours_by_cosine_exclude_the_query():
    neighbours = PLANE.nearest("east", 3)
    assert [each.word for each in neighbours] == ["northeast", "north", "nowhere"]
    assert [each.cosine for each in neighbours] == pytest.approx([np.sqrt(0.5), 0.0, 0.0])
    assert len(PLANE.nearest("east", 99)) == 4


def test_analogy_uses_normalised_vectors():
    """north - east + west = (0, 1) - (1, 0) + (-1, 0) = (-2, 1): nearest of the two left is (0, 0),
    whose cosine is 0, as northeast's is (-2 + 1)/√10 < 0."""
    assert PLANE.analogy("east", "north", "west", 1)[0].word == "nowhere"
    best = PLANE.analogy("west", "north", "north", 1)[0]
    # 2 (0, 1) + (1, 0): northeast's cosine is 3/√10.
    assert best.word == "northeast" and best.cosine == pytest.approx(3 / np.sqrt(10))


def test_unknown_word_error_suggests_spellings():
    with pytest.raises(UserError, match=r"no vector for 'nort'.*'north'"):
        PLANE.nearest("nort")


def test_spearman_with_ties_by_hand():
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: 4.5/√(4.5 · 5)."""
    assert spearman([1, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert spearman([1, 2, 3], [30, 20, 10]) == pytest.approx(-1.0)


def test_similarity_correlation_counts_skipped_pairs():
    pairs = [
        SimilarityPair(first=a, second=b, similarity=s)
        for a, b, s in [("east", "northeast", 9), ("east", "north", 5), ("east", "west", 0)]
    ]
    missing = SimilarityPair(first="east", second="up", similarity=3)
    result = PLANE.similarity_correlation([*pairs, missing])
    assert (result.spearman, result.pairs, result.left_out) == (pytest.approx(1.0), 3, 1)
    with pytest.raises(UserError, match="0 of 1 pairs"):
        PLANE.similarity_correlation([missing])


def test_wordsim_and_simlex_formats_are_read(tmp_path: Path):
    """WordSim-353 has commas and a heading, SimLex-999 tabs and a part of speech."""
    wordsim = tmp_path / "wordsim.csv"
    wordsim.write_text("Word 1,Word 2,Human (mean)\nlove,sex,6.77\ntiger,cat,7.35\n")
    assert [(p.first, p.second, p.similarity) for p in read_similarity_pairs(wordsim)] == [
        ("love", "sex", 6.77),
        ("tiger", "cat", 7.35),
    ]
    simlex = tmp_path / "simlex.tsv"
    simlex.write_text("word1\tword2\tPOS\tSimLex999\nold\tnew\tA\t1.58\n")
    assert read_similarity_pairs(simlex)[0].similarity == 1.58
    spaces = tmp_path / "plain.txt"
    spaces.write_text("# a remark\na b 1\nc d none\n")
    with pytest.raises(UserError, match="line 3: expected two words and a number"):
        read_similarity_pairs(spaces)


def test_word_vectors_are_the_embedding_table():
    tokenizer = train_tokenizer("word", ["a b c"])
    system = build_tiny("lstm", tokenizer.vocabulary)
    vectors = word_vectors(system, tokenizer)
    assert vectors.words == ["a", "b", "c"]
    table = system.backbone.embedding.weight.detach()  # type: ignore[union-attr]
    assert torch.equal(torch.from_numpy(vectors.vectors), table[5:])
    with pytest.raises(UserError, match="no vector for each of its tokens; use one"):
        word_vectors(build_tiny("ngram", tokenizer.vocabulary), tokenizer)
