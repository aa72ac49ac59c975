"""PEGASUS gap sentences: selection against brute force, masking and targets."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.denoising_base import DenoisingSpecialTokens, SentenceSplitter
from lmlab.objectives.gap_sentences import (
    GapSentenceGeneration,
    IndependentSelection,
    LeadSelection,
    RandomSelection,
    SequentialSelection,
    make_gap_selection,
)
from lmlab.zoo import pegasus

VOCABULARY = Vocabulary(size=16)
PAD, START, END, MASK, STOP = 0, 2, 3, 4, 5


def draw_sentences(seed: int) -> list[list[int]]:
    """3 to 7 sentences of 1 to 6 words out of 6, so that they share many."""
    random = np.random.default_rng(seed)
    return [
        random.integers(6, 12, random.integers(1, 7)).tolist() for _ in range(random.integers(3, 8))
    ]


def rouge_by_hand(chosen: list[int], rest: list[int]) -> float:
    """Precision and recall of words, clipped by how often the other side has them."""
    chosen_counts, rest_counts = Counter(chosen), Counter(rest)
    overlap = sum(min(count, rest_counts[word]) for word, count in chosen_counts.items())
    if overlap == 0:
        return 0.0
    precision, recall = overlap / len(chosen), overlap / len(rest)
    return 2 * precision * recall / (precision + recall)


def score_by_hand(chosen: tuple[int, ...], sentences: list[list[int]], unique: bool) -> float:
    inside = [word for number in chosen for word in sentences[number]]
    outside = [word for n, sentence in enumerate(sentences) if n not in chosen for word in sentence]
    if unique:
        inside, outside = list(set(inside)), list(set(outside))
    return rouge_by_hand(inside, outside)


def arrays(sentences: list[list[int]]) -> list[np.ndarray]:
    return [np.array(sentence) for sentence in sentences]


@pytest.mark.parametrize("unique", [False, True], ids=["orig", "uniq"])
def test_independent_selection_takes_the_highest_rouge(unique: bool):
    """Of all sets of that size, one with the largest sum of scores; ties go to the earlier."""
    random = np.random.default_rng(0)
    for seed in range(60):
        sentences = draw_sentences(seed)
        scores = [score_by_hand((n,), sentences, unique) for n in range(len(sentences))]
        count = 1 + seed % (len(sentences) - 1)
        selected = IndependentSelection(unique)(arrays(sentences), count, random=random)
        sets = itertools.combinations(range(len(sentences)), count)
        best = max(
            sets, key=lambda subset: (round(sum(scores[n] for n in subset), 9), -sum(subset))
        )
        assert sum(scores[n] for n in selected) == pytest.approx(sum(scores[n] for n in best))
        assert selected == sorted(set(selected)) and len(selected) == count
        for taken in selected:
            equal = [n for n in range(taken) if scores[n] == pytest.approx(scores[taken])]
            assert set(equal) <= set(selected), (
                "an earlier sentence with an equal score was skipped"
            )


@pytest.mark.parametrize("unique", [False, True], ids=["orig", "uniq"])
def test_sequential_selection_maximises_rouge_greedily(unique: bool):
    random, differs = np.random.default_rng(0), 0
    for seed in range(60):
        sentences = draw_sentences(seed)
        expected: list[int] = []
        for _ in range(2):
            left = [n for n in range(len(sentences)) if n not in expected]
            gains = [round(score_by_hand((*expected, n), sentences, unique), 12) for n in left]
            expected.append(left[gains.index(max(gains))])
        selected = SequentialSelection(unique)(arrays(sentences), 2, random=random)
        assert selected == sorted(expected)
        differs += selected != IndependentSelection(unique)(arrays(sentences), 2, random=random)
    assert differs > 0, "the two selections never differ: the test would pass on either"


def test_independent_selection_by_hand():
    """Sentences 6 7 | 6 7 8 | 9. The first: overlap 2, P = 2/2, R = 2/4, F = 2/3; the second:
    overlap 2, P = 2/3, R = 2/3, F = 2/3; the third shares nothing. Ties go to the earlier."""
    sentences = arrays([[6, 7], [6, 7, 8], [9]])
    assert score_by_hand((0,), [[6, 7], [6, 7, 8], [9]], False) == pytest.approx(2 / 3)
    assert IndependentSelection()(sentences, 1, random=np.random.default_rng(0)) == [0]


def test_lead_selection_is_first_and_random_is_uniform():
    sentences, random, trials = arrays([[6], [7], [8], [9]]), np.random.default_rng(0), 3000
    assert LeadSelection()(sentences, 2, random=random) == [0, 1]
    counts = Counter(tuple(RandomSelection()(sentences, 2, random=random)) for _ in range(trials))
    assert set(counts) == set(itertools.combinations(range(4), 2))
    error = (trials * (1 / 6) * (5 / 6)) ** 0.5
    assert all(abs(count - trials / 6) < 4 * error for count in counts.values())


def objective(choice=None, **words) -> GapSentenceGeneration:
    return GapSentenceGeneration(
        DenoisingSpecialTokens.from_vocabulary(VOCABULARY),
        choice or LeadSelection(),
        sentences=SentenceSplitter([STOP]),
        **words,
    )


def batch_of(*bodies: list[int], condition: Batch | None = None) -> Batch:
    return Batch.collate([[START, *body, END] for body in bodies], PAD, condition=condition)


def test_gaps_are_masked_in_the_source_and_become_targets():
    """The first, by ROUGE, of three sentences: 6 7 . | 9 . | 6 7 8 . (the marks don't count)."""
    batch = batch_of([6, 7, STOP, 9, STOP, 6, 7, 8, STOP], [10, STOP, 11, STOP])
    view = objective(IndependentSelection()).view(batch)
    assert view.inputs.tolist() == [
        [START, MASK, 9, STOP, 6, 7, 8, STOP, END],
        [START, MASK, 11, STOP, END, PAD, PAD, PAD, PAD],
    ]
    assert view.clean_positions is not None
    assert view.clean_positions[0].tolist() == [-1, -1, 4, 5, 6, 7, 8, 9, -1]
    decoder_view = view.prediction_view
    assert decoder_view.inputs.tolist() == [[START, 6, 7, STOP], [START, 10, STOP, END]]
    assert decoder_view.lengths.tolist() == [4, 3]
    assert decoder_view.targets is not None and decoder_view.clean_positions is not None
    assert decoder_view.targets.tolist() == [[6, 7, STOP, END], [10, STOP, END, NO_TARGET]]
    assert decoder_view.clean_positions.tolist() == [[1, 2, 3, -1], [1, 2, -1, -1]]


def test_several_gaps_are_joined_in_text_order():
    body = [6, STOP, 7, STOP, 8, STOP, 9, STOP]

    class LastAndFirst:
        def __call__(self, sentences, count, *, random) -> list[int]:
            assert count == 2  # round(0.5 · 4)
            return [3, 0]

    view = objective(LastAndFirst(), rate=0.5).view(batch_of(body))
    assert view.inputs.tolist() == [[START, MASK, 7, STOP, 8, STOP, MASK, END]]
    assert view.prediction_view.targets is not None
    assert view.prediction_view.targets.tolist() == [[6, STOP, 9, STOP, END]]


@pytest.mark.parametrize(
    ("count", "gaps"), [(2, 1), (3, 1), (4, 1), (5, 2), (6, 2), (10, 3), (20, 6)]
)
def test_gap_count_follows_the_rate(count: int, gaps: int):
    """0.3 · count, rounded; at least one."""
    view = objective(RandomSelection()).view(batch_of([6, STOP] * count))
    assert int((view.inputs == MASK).sum()) == gaps


def test_all_sentences_are_gaps_only_by_full_mask_rate():
    body = [6, STOP, 7, STOP]
    assert int((objective(rate=1.0).view(batch_of(body)).inputs == MASK).sum()) == 1
    whole = objective(full_mask_rate=1.0).view(batch_of(body))
    assert whole.inputs.tolist() == [[START, MASK, END]]
    assert whole.prediction_view.targets is not None
    assert whole.prediction_view.targets.tolist() == [[*body, END]]


@pytest.mark.parametrize(
    ("time", "sizes"),
    [(0, []), (1, [1]), (2, [1, 1]), (3, [2, 1]), (7, [4, 3]), (8, [4, 4]), (13, [4, 4, 4, 1])],
)
def test_single_sentence_is_split_into_segments(time: int, sizes: list[int]):
    parts = objective().split_sentences(np.full(time, 6))
    assert [len(part) for part in parts] == sizes
    assert [position for part in parts for position in part.tolist()] == list(range(time))


def test_single_token_text_is_fully_masked():
    view = objective().view(batch_of([6]))
    assert view.inputs.tolist() == [[START, MASK, END]]
    assert view.prediction_view.targets is not None and view.prediction_view.targets.tolist() == [
        [6, END]
    ]


def test_pairs_are_conditioned_on_the_clean_source():
    source = batch_of([6, STOP, 7, STOP])
    view = objective(full_mask_rate=1.0).view(batch_of([8, 9], condition=source))
    assert torch.equal(view.inputs, source.tokens)
    assert view.prediction_view.targets is not None and view.prediction_view.targets.tolist() == [
        [8, 9, END]
    ]


def test_special_tokens_of_transformers_checkpoints():
    """As in transformers' Pegasus: <pad> starts the decoder, a source has no start token."""
    config = replace(
        pegasus.SIZES["tiny"],
        full_mask_rate=0.0,
        mask=15,
        decoder_prefix=(PAD,),
        source_has_start=False,
        choice="lead",
    )
    system = pegasus.build(config, VOCABULARY).eval()
    system.objective.sentences = SentenceSplitter([STOP])
    view = system.objective.view(batch_of([6, STOP, 7, STOP]))
    assert view.inputs.tolist() == [[15, 7, STOP, END]]
    assert view.clean_positions is not None and view.clean_positions.tolist() == [[-1, 3, 4, -1]]
    assert view.prediction_view.inputs.tolist() == [[PAD, 6, STOP]]
    fully_masked = system.objective.source_view(None, 1, torch.device("cpu"))
    assert fully_masked.inputs.tolist() == [[15, END]]


def test_unknown_selection_is_reported_with_a_suggestion():
    with pytest.raises(UserError, match="'ind-orig'"):
        make_gap_selection("ind-org")
