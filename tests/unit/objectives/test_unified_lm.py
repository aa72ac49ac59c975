"""UniLM's four attention modes: proportions, masking, attention and scoring."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lmlab.core.attention_mask import CausalMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.unified_lm import NgramMasking, UniLMMode, UniLMObjective

VOCABULARY = Vocabulary(size=20)
START, END, MASK = 2, 3, 4
TEXT = [START, 5, 6, 7, 8, 9, 10, END]


@pytest.fixture(scope="module")
def system():
    torch.manual_seed(0)
    module = system_module("unilm")
    return module.build(module.SIZES["tiny"], VOCABULARY).eval().double()


def batch_of(*rows: list[int], condition: Batch | None = None) -> Batch:
    return Batch.collate(rows, pad=0, condition=condition)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def within_standard_errors(share: float, expected: float, count: int, errors: float = 4.5) -> bool:
    return abs(share - expected) < errors * math.sqrt(expected * (1 - expected) / count)


def test_modes_follow_the_proportions_of_the_paper(system):
    """Bidirectional ⅓, sequence to sequence ⅓, left to right ⅙, right to left ⅙, by segment."""
    rows = 6000
    view = system.objective.view(batch_of(*[TEXT] * rows), generator=seeded())
    first = view.segments[:, 0]
    for segment, share in ((0, 1 / 3), (4, 1 / 3), (2, 1 / 6), (3, 1 / 6)):
        assert within_standard_errors((first == segment).float().mean().item(), share, rows)


def test_each_position_is_masked_at_the_rate():
    """N-grams cover several positions, yet each position is masked in 15 % of the rows."""
    rows, time = 8000, 60
    allowed = torch.ones(rows, time, dtype=torch.bool)
    batch = Batch.collate([[5] * time] * rows, pad=0)
    chosen = NgramMasking(rate=0.15)(batch, allowed, generator=seeded())
    for position in (0, 1, 2, 30, 59):
        assert within_standard_errors(chosen[:, position].float().mean().item(), 0.15, rows)


def test_ngram_sizes_are_80_10_10():
    count = 20_000
    sizes = NgramMasking().sizes(torch.rand(count, generator=seeded()))
    for size, share in ((1, 0.8), (2, 0.1), (3, 0.1)):
        assert within_standard_errors((sizes == size).float().mean().item(), share, count)
    assert set(sizes.tolist()) == {1, 2, 3}


def test_ngrams_mask_adjacent_tokens():
    """Where every span has two tokens, no token inside a text is masked without a neighbour."""
    spans = NgramMasking(rate=0.2, ngram_rate=1.0, max_ngram=2)
    allowed = torch.ones(200, 120, dtype=torch.bool)
    batch = Batch.collate([[5] * 120] * 200, pad=0)
    chosen = spans(batch, allowed, generator=seeded())
    alone = chosen[:, 1:-1] & ~chosen[:, :-2] & ~chosen[:, 2:]
    assert not alone.any()
    assert within_standard_errors(chosen[:, 30].float().mean().item(), 0.2, 200)


def test_mask_replacement_is_80_10_10(system):
    view = system.objective.view(batch_of(*[TEXT] * 6000), generator=seeded())
    masked = view.targets != NO_TARGET
    inputs, clean = view.inputs[masked], view.targets[masked]
    count = len(inputs)
    assert within_standard_errors((inputs == MASK).float().mean().item(), 0.8, count)
    # A random token is the token itself once in 15: ordinary tokens 5 … 19, and <unk>.
    unchanged_rate = 0.1 + 0.1 / 16
    assert within_standard_errors((inputs == clean).float().mean().item(), unchanged_rate, count)


def input_dependence(system, view: View) -> Tensor:
    """(T, T) bool: hidden state i depends on the input at position j, for one row."""
    time = view.inputs.shape[1]
    with torch.no_grad():
        before = system.hidden(view).values[0]
        changed = []
        for position in range(time):
            inputs = view.inputs.clone()
            inputs[0, position] = 11 if inputs[0, position] != 11 else 12
            after = system.hidden(replace(view, inputs=inputs)).values[0]
            changed.append((after != before).any(-1))
    return torch.stack(changed, 1)


@pytest.mark.parametrize(
    ("mode", "relation"),
    [
        (UniLMMode.BIDIRECTIONAL, lambda i, j: i == i),
        (UniLMMode.LEFT_TO_RIGHT, lambda i, j: j <= i),
        (UniLMMode.RIGHT_TO_LEFT, lambda i, j: j >= i),
    ],
)
def test_single_segment_attention_follows_the_mode(system, mode, relation):
    view = system.objective.view_in_modes(batch_of(TEXT), torch.tensor([mode]), generator=seeded())
    position = torch.arange(len(TEXT))
    expected = relation(position[:, None], position[None, :]).expand(len(TEXT), len(TEXT))
    assert torch.equal(input_dependence(system, view), expected)


def test_seq2seq_mode_attention(system):
    """The source attends to itself; the target to the source and its own past."""
    modes = torch.tensor([UniLMMode.SEQUENCE_TO_SEQUENCE])
    cuts = set()
    for seed in range(8):
        view = system.objective.view_in_modes(batch_of(TEXT), modes, generator=seeded(seed))
        [segments] = view.segments.tolist()
        size = segments.count(4)
        assert segments == [4] * size + [5] * (len(TEXT) + 1 - size)
        first = torch.arange(len(TEXT) + 1) < size
        position = torch.arange(len(TEXT) + 1)
        past = (position[None, :] <= position[:, None]) & ~first[:, None]
        assert torch.equal(input_dependence(system, view), first[None, :] | past)
        cuts.add(size)
    assert len(cuts) > 1, "the split is sampled"


def test_seq2seq_mode_splits_the_text_at_a_separator(system):
    modes = torch.tensor([UniLMMode.SEQUENCE_TO_SEQUENCE] * 200)
    view = system.objective.view_in_modes(batch_of(*[TEXT] * 200), modes, generator=seeded())
    separators = view.segments.diff(dim=1).argmax(1)
    # Six tokens: each part has one at least, so the first ends after the 1st … 5th.
    assert sorted(set(separators.tolist())) == [2, 3, 4, 5, 6]
    for row, separator in enumerate(separators.tolist()):
        assert view.inputs[row, separator] == END
        assert view.targets[row, separator] == NO_TARGET
        target_positions = (view.targets[row] != NO_TARGET).nonzero().flatten().tolist()
        for position in target_positions:
            origin = position - (position > separator)
            assert view.clean_positions[row, position] == origin
            assert view.targets[row, position] == TEXT[origin]


def test_end_token_is_masked_only_in_generative_modes(system):
    batch = batch_of(*[TEXT] * 400)
    for mode in UniLMMode:
        view = system.objective.view_in_modes(batch, torch.full((400,), mode), generator=seeded())
        end_is_target = bool((view.targets == END).any())
        assert end_is_target == (mode in (UniLMMode.LEFT_TO_RIGHT, UniLMMode.SEQUENCE_TO_SEQUENCE))


def test_score_equals_a_mask_appended_to_each_prefix(system):
    """One pass over text and appended masks equals a separate pass for each token."""
    batch = batch_of(TEXT, [START, 9, 9, END])
    with torch.no_grad():
        scores = system.log_prob(batch).per_token
        for row, length in enumerate(batch.lengths.tolist()):
            tokens = batch.tokens[row, :length].tolist()
            for position in range(1, length):
                inputs = torch.tensor([[*tokens[:position], MASK]])
                targets = torch.full_like(inputs, NO_TARGET)
                targets[0, -1] = tokens[position]
                view = View(
                    inputs=inputs,
                    lengths=torch.tensor([position + 1]),
                    attention_mask=CausalMask(),
                    targets=targets,
                    segments=torch.full_like(inputs, 2),
                )
                expected = system.target_log_probs(view).log_probs[0]
                assert scores[row, position - 1] == pytest.approx(expected.item(), abs=1e-10)
    assert scores[1, 3:].tolist() == [0.0] * 4


def test_conditional_scores_equal_stepwise_scores(system):
    """Sources of different lengths, so that padding lies between sources and texts."""
    sources = batch_of([START, 11, 12, 13, 14, END], [START, 15, END])
    texts = batch_of([START, 5, 6, END], [START, 7, 8, END], condition=sources)
    with torch.no_grad():
        at_once = system.log_prob(texts).per_token
        state, stepped = system.start(2, condition=sources), []
        for position in range(1, 4):
            tokens = texts.tokens[:, position]
            stepped.append(system.peek(state).log_prob(tokens))
            state = system.advance(state, tokens)
        without = system.log_prob(replace(texts, condition=None)).per_token
    torch.testing.assert_close(torch.stack(stepped, 1), at_once, atol=1e-10, rtol=0)
    assert (without != at_once).all()


def test_fine_tuning_masks_the_target_and_not_the_source(system):
    rows = 3000
    source = batch_of(*[[START, 11, 12, END]] * rows)
    batch = batch_of(*[[START, 5, 6, 7, END]] * rows, condition=source)
    view = system.objective.view(batch, generator=seeded())
    is_target = view.targets != NO_TARGET
    assert not is_target[:, :4].any()
    assert view.inputs[:, :4].tolist() == source.tokens.tolist()
    assert view.segments[0].tolist() == [4] * 4 + [5] * 4
    # A row without any gets one: 0.3^4 of the rows, a quarter of which for each position.
    rate = 0.7 + 0.3**4 / 4
    for position in (4, 7):
        assert within_standard_errors(is_target[:, position].float().mean().item(), rate, rows)
    first = torch.arange(8) < 4
    past = torch.ones(8, 8, dtype=torch.bool).tril() & ~first[:, None]
    assert torch.equal(view.attention_mask.mask(view.lengths, 8)[0], first[None, :] | past)


def test_too_long_pair_is_reported(system):
    source = batch_of([START, *[5] * 50, END])
    batch = batch_of([START, *[6] * 20, END], condition=source)
    with pytest.raises(UserError, match="at most 64 tokens, got 73"):
        system.log_prob(batch)


def test_generation_beyond_max_length_is_reported(system):
    state = system.start(1)
    with torch.no_grad():
        for _ in range(63):
            state = system.advance(state, torch.tensor([5]))
        with pytest.raises(UserError, match="at most 64 tokens"):
            system.peek(state)


@pytest.mark.parametrize("shares", [(1.0, 1.0), (1.0, -1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)])
def test_invalid_mode_proportions_are_refused(system, shares):
    objective = system.objective
    with pytest.raises(UserError, match="shares of UniLM's modes must be four numbers"):
        UniLMObjective(VOCABULARY, objective.choice, objective.replacement, shares=shares)
