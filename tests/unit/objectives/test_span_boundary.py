"""Span boundary objective (SpanBERT): predicts a span from its two boundary positions."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.registry import system_module
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.softmax import Softmax
from lmlab.objectives.span_boundary import SpanBoundaryObjective, span_boundaries

VOCABULARY = Vocabulary(size=12)
WIDTH = 6


def make_view(target_positions: list[list[int]], lengths: list[int], time: int = 10) -> View:
    """Targets at some positions, tokens 5, 6, 7 … in text order."""
    targets = torch.full((len(target_positions), time), NO_TARGET)
    for row, positions in enumerate(target_positions):
        targets[row, positions] = torch.arange(len(positions)) % 7 + 5
    return View(
        inputs=torch.full((len(target_positions), time), 4),
        lengths=torch.tensor(lengths),
        attention_mask=FullMask(),
        targets=targets,
    )


def make_task(max_positions: int = 20) -> SpanBoundaryObjective:
    torch.manual_seed(0)
    task = SpanBoundaryObjective(WIDTH, Softmax(WIDTH, VOCABULARY), max_positions=max_positions)
    for parameter in task.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter)
    return task


def test_boundaries_are_the_positions_outside_each_span():
    view = make_view([[2, 3, 4, 7], [1, 8]], [10, 10])
    before, behind, is_target = span_boundaries(view)
    assert before[is_target].tolist() == [1, 1, 1, 6, 0, 7]
    assert behind[is_target].tolist() == [5, 5, 5, 8, 2, 9]


def test_span_at_the_text_end_has_no_right_boundary():
    is_target = span_boundaries(make_view([[2, 5, 6]], [7]))[2]
    assert is_target[0].nonzero().flatten().tolist() == [2]


def test_predictions_depend_on_the_boundaries_only():
    """Each of ten hidden states changed in turn: which of the predictions 2, 3, 4 and 7 change."""
    view, task = make_view([[2, 3, 4, 7]], [10]), make_task()
    hidden = torch.randn(1, 10, WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        before, _ = task(view, hidden)
        for position in range(10):
            moved = hidden.clone()
            moved[0, position] += 1.0
            changed = (task(view, moved)[0] != before).any(-1).tolist()
            first, second = position in (1, 5), position in (6, 8)
            assert changed == [first, first, first, second]


def test_predictions_depend_on_the_position_in_the_span():
    view, task = make_view([[2, 3, 4, 7]], [10]), make_task()
    with torch.no_grad():
        vectors, _ = task(view, torch.ones(1, 10, WIDTH))
    # All boundaries alike, so that only the position in the span differs: 0, 1, 2, and 0 again.
    assert not torch.allclose(vectors[0], vectors[1]) and not torch.allclose(vectors[1], vectors[2])
    torch.testing.assert_close(vectors[0], vectors[3])


def test_span_boundary_loss_equals_its_formula():
    """Against the formula written out, with spans longer than the position table."""
    view, task = make_view([[1, 2, 3], [4]], [6, 6], time=6), make_task(max_positions=2)
    hidden = torch.randn(2, 6, WIDTH, generator=torch.Generator().manual_seed(2))
    first, norm_1, second, norm_2 = (task.layers[i] for i in (0, 2, 3, 5))
    total = 0.0
    predictions = [(0, 0, 4, 0, 5), (0, 0, 4, 1, 6), (0, 0, 4, 1, 7), (1, 3, 5, 0, 5)]
    for row, left, right, position, token in predictions:
        outside = torch.cat(
            [hidden[row, left], hidden[row, right], task.positions.weight[position]]
        )
        once = norm_1(nn.functional.gelu(first(outside)))
        twice = norm_2(nn.functional.gelu(second(once)))
        total -= task.emission.log_probs(twice)[token]
    loss = task.loss(view, hidden)
    torch.testing.assert_close(loss.total, total)
    assert float(loss.count) == 4


def test_spanbert_adds_both_losses_over_the_same_tokens():
    module = system_module("spanbert")
    system = module.build(module.SIZES["tiny"], VOCABULARY)
    batch = Batch.collate([[2, *[5, 6, 7, 8] * 5, 3]] * 3, pad=0)
    loss, _ = system.loss(batch, generator=torch.Generator().manual_seed(0))
    masked, outside = loss.parts["masked"], loss.parts["span boundary"]
    assert masked.count == outside.count == loss.count == 9  # 3 of 20 words in each text
    torch.testing.assert_close(loss.total, masked.total + outside.total)
    assert system.objective.boundary.emission.weight is system.backbone.embedding.tokens.weight
    plain = module.build(replace(module.SIZES["tiny"], sbo_positions=0), VOCABULARY)
    assert plain.objective.boundary is None
