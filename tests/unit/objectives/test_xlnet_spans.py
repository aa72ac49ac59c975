"""XLNet's target spans and two segments: lengths, contexts, order, and where tokens come from."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.permutation_lm import PermutationLM, sample_target_spans
from lmlab.objectives.sentence_pairs import TwoSegments

VOCABULARY = Vocabulary(size=200)


def test_span_lengths_are_uniform_and_a_sixth_of_the_text() -> None:
    """Runs of targets; those of two contexts may touch."""
    random = np.random.default_rng(0)
    counts = [3000] * 20
    spans = sample_target_spans(counts, 5, 6, random)
    assert not spans[:, 0].any()
    assert float(spans[:, 1:].float().mean()) == pytest.approx(1 / 6, abs=0.002)
    # A context of six tokens or more leaves most spans apart.
    runs = [
        sum(1 for _ in group) for row in spans.tolist() for value, group in groupby(row) if value
    ]
    shares = Counter(min(run, 6) for run in runs)
    apart = [shares[length] / len(runs) for length in range(1, 6)]
    assert max(apart) - min(apart) < 0.06
    assert shares[6] / len(runs) < 0.08


def test_short_texts_by_hand() -> None:
    """One token is a target; five tokens have one; nothing is none."""
    spans = sample_target_spans([0, 1, 5, 6], 1, 6, np.random.default_rng(1))
    assert spans.shape == (4, 7)
    assert spans.sum(1).tolist() == [0, 1, 1, 1]
    assert spans[1].tolist() == [False, True, *[False] * 5]


def batch() -> Batch:
    texts = [list(range(first, first + count)) for first, count in ((10, 30), (60, 17), (90, 4))]
    return Batch.collate([[2, *text, 3] for text in texts], pad=0)


def test_targets_are_last_in_the_order_and_see_all_others() -> None:
    objective = PermutationLM(VOCABULARY, max_span=5)
    view = objective.view(batch(), generator=torch.Generator().manual_seed(0))
    assert view.targets is not None and view.order is not None
    assert view.query_attention_mask is not None
    allowed = view.query_attention_mask.mask(view.lengths, view.inputs.shape[1])
    for row, length in enumerate(view.lengths.tolist()):
        targets = (view.targets[row] != NO_TARGET).nonzero().flatten().tolist()
        assert targets
        others = [position for position in range(length) if position not in targets]
        assert sorted(view.order[row, :length].tolist()) == list(range(length))
        assert min(view.order[row, targets].tolist()) > max(view.order[row, others].tolist())
        for target in targets:
            assert all(bool(allowed[row, target, other]) for other in others)
            assert not bool(allowed[row, target, target])


def test_two_segments_by_hand() -> None:
    """<s> A </s> B </s> of one text or two; [CLS], A with its separator, and B have segments."""
    objective = PermutationLM(VOCABULARY, partial_prediction=1, pairs=TwoSegments(VOCABULARY))
    generator, clean, seen = torch.Generator().manual_seed(0), batch(), Counter[bool]()
    for _ in range(40):
        view = objective.view(clean, generator=generator)
        assert view.segments is not None and view.targets is not None
        assert view.clean_positions is not None and view.clean_rows is not None
        for row, length in enumerate(view.lengths.tolist()):
            tokens, segments = view.inputs[row, :length].tolist(), view.segments[row].tolist()
            assert (tokens[0], segments[0], tokens[-1]) == (2, 2, 3)
            separator = tokens.index(3)
            first, second = tokens[1:separator], tokens[separator + 1 : -1]
            assert segments[1 : separator + 1] == [0] * (len(first) + 1)
            assert segments[separator + 1 : length] == [1] * (len(second) + 1)
            assert first == list(range(first[0], first[0] + len(first)))
            assert second == list(range(second[0], second[0] + len(second)))
            seen[second[0] == first[-1] + 1] += 1
            positions, rows = view.clean_positions[row], view.clean_rows[row]
            for place in range(1, length):
                if positions[place] >= 0:
                    assert clean.tokens[rows[place], positions[place]] == tokens[place]
    assert 0.35 < seen[True] / seen.total() < 0.65
