"""GLM blank infilling: a view by hand, span distributions, attention, blanks of any length."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.blank_infilling import (
    BlankInfilling,
    LongSpan,
    PoissonSpans,
    SpanMixture,
    place_spans,
)

S, E, M = 2, 3, 4
"""<s>, </s> and <mask>."""
VOCABULARY = Vocabulary(size=20)
OPEN = 20
"""[START], the first id after the tokenizer's."""
TEXT = [S, 11, 12, 13, 14, 15, 16, E]
"""x1 … x6, as in the paper's figure."""


@pytest.fixture(scope="module")
def system():
    torch.manual_seed(0)
    module = system_module("glm")
    return module.build(module.SIZES["tiny"], VOCABULARY).eval().double()


def batch_of(*rows: list[int], condition: Batch | None = None) -> Batch:
    return Batch.collate(rows, pad=0, condition=condition)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chi_square_p_value(observed: Counter, expected: dict[int, float]) -> float:
    """Upper tail of Pearson's statistic over cells with at least five expected, the rest as one."""
    large = {cell: count for cell, count in expected.items() if count >= 5}
    rest = sum(observed.values()) - sum(observed[cell] for cell in large)
    left = sum(observed.values()) - sum(large.values())
    statistic = sum((observed[cell] - count) ** 2 / count for cell, count in large.items())
    cells = len(large)
    if left > 1:
        statistic, cells = statistic + (rest - left) ** 2 / left, cells + 1
    half = torch.tensor([(cells - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()


def test_view_equals_the_figure_of_the_glm_paper(system):
    """Du et al. 2022, figure 2: x3 and x5 x6 are masked, and x5 x6 is generated first."""
    view = system.objective.view_with_spans(batch_of(TEXT), [[(2, 1), (4, 2)]], [[1, 0]])
    a, b = [S, 11, 12, M, 14, M, E], [OPEN, 15, 16, OPEN, 13]
    assert view.inputs.tolist() == [a + b]
    assert view.targets.tolist() == [[NO_TARGET] * 7 + [15, 16, E, 13, E]]
    assert view.clean_positions.tolist() == [[-1] * 7 + [5, 6, -1, 3, -1]]
    first, second = view.positions[0].T.tolist()
    assert first == [0, 1, 2, 3, 4, 5, 6, 5, 5, 5, 3, 3]
    assert second == [0] * 7 + [1, 2, 3, 1, 2]
    allowed = view.attention_mask.mask(view.lengths, 12)[0]
    expected = torch.zeros(12, 12, dtype=torch.bool)
    expected[:, :7] = True
    expected[7:, 7:] = torch.ones(5, 5, dtype=torch.bool).tril()
    assert torch.equal(allowed, expected)


def input_dependence(system, view: View) -> Tensor:
    """(T, T) bool: hidden state i depends on the input at position j, for one row."""
    with torch.no_grad():
        before = system.hidden(view).values[0]
        changed = []
        for position in range(view.inputs.shape[1]):
            inputs = view.inputs.clone()
            inputs[0, position] = 7 if inputs[0, position] != 7 else 8
            after = system.hidden(replace(view, inputs=inputs)).values[0]
            changed.append((after != before).any(-1))
    return torch.stack(changed, 1)


def test_text_is_bidirectional_and_spans_are_causal(system):
    for seed in range(6):
        view = system.objective.view(batch_of(TEXT), generator=seeded(seed))
        time = view.inputs.shape[1]
        in_text = view.positions[0, :, 1] == 0
        past = torch.ones(time, time, dtype=torch.bool).tril() & ~in_text[:, None]
        assert torch.equal(input_dependence(system, view), in_text[None, :] | past)
        assert bool(((view.targets[0] != NO_TARGET) == ~in_text).all())


def test_blank_length_does_not_leak(system):
    """The first prediction in a blank is the same whether one token was masked or three."""
    short, long = [S, 11, 12, 15, E], [S, 11, 12, 13, 14, 15, E]
    with torch.no_grad():
        first = system.hidden(system.objective.view_with_spans(batch_of(short), [[(1, 1)]], [[0]]))
        second = system.hidden(system.objective.view_with_spans(batch_of(long), [[(1, 3)]], [[0]]))
    # <s> 11 <mask> 15 </s>, and then [START].
    torch.testing.assert_close(first.values[0, 5], second.values[0, 5], atol=1e-12, rtol=0)


def test_short_spans_have_poisson_lengths_without_zero():
    random = np.random.default_rng(0)
    distribution, count = PoissonSpans(mean=3.0), 6000
    observed = Counter(distribution.length(random) for _ in range(count))
    # e^-3 3^k / k!, divided by what is left without k = 0.
    expected = {
        k: count * math.exp(-3) * 3**k / math.factorial(k) / (1 - math.exp(-3))
        for k in range(1, 20)
    }
    assert observed[0] == 0
    assert chi_square_p_value(observed, expected) > 1e-4


def test_short_spans_reach_the_masking_rate_and_stop():
    """At least 15 % is masked, and without one of the spans it would be less than that."""
    random = np.random.default_rng(0)
    shares = []
    for _ in range(400):
        spans = PoissonSpans()(200, random)
        taken = sum(length for _, length in spans)
        assert taken >= 0.15 * 200
        assert taken - max(length for _, length in spans) < 0.15 * 200
        for (start, length), (following, _) in itertools.pairwise(spans):
            assert start + length < following, "at least one token separates two blanks"
        shares.append(taken / 200)
    # What the last span overshoots by: about (E l² / E l - 1) / 2 = 1.5 tokens of 200, or 0.0075.
    expected = 0.15 + 1.5 / 200
    assert np.mean(shares) == pytest.approx(expected, abs=4.5 * np.std(shares) / 20)


@pytest.mark.parametrize("tokens", range(8))
def test_spans_fit_into_texts_of_any_length(tokens):
    random = np.random.default_rng(tokens)
    for distribution in (PoissonSpans(), LongSpan(), PoissonSpans(rate=0.9)):
        for _ in range(50):
            spans = distribution(tokens, random)
            assert bool(spans) == bool(tokens)
            positions = [p for start, length in spans for p in range(start, start + length)]
            assert positions == sorted(set(positions))
            assert all(0 <= position < tokens for position in positions)


def test_span_placement_is_uniform():
    """Lengths 1 and 2 in six tokens, one at least between them: 6 layouts by enumeration."""
    layouts = [
        (first, second)
        for first, second in itertools.product(range(6), repeat=2)
        if first + 1 < second and second + 2 <= 6
    ]
    assert len(layouts) == 6
    random, count = np.random.default_rng(0), 3000
    placements = [tuple(start for start, _ in place_spans([1, 2], 6, random)) for _ in range(count)]
    assert set(placements) == set(layouts)
    observed = Counter(layouts.index(placement) for placement in placements)
    assert chi_square_p_value(observed, dict.fromkeys(range(6), count / 6)) > 1e-4


def test_long_span_length_is_uniform_from_half_to_all():
    random, count = np.random.default_rng(0), 3000
    samples = [LongSpan()(10, random) for _ in range(count)]
    assert all(len(spans) == 1 for spans in samples)
    observed = Counter(spans[0][1] for spans in samples)
    assert set(observed) == {5, 6, 7, 8, 9, 10}
    assert chi_square_p_value(observed, dict.fromkeys(range(5, 11), count / 6)) > 1e-4


def test_span_mixture_samples_by_its_weights():
    random, count = np.random.default_rng(0), 4000
    always_one = PoissonSpans(rate=0.001, mean=1e-6)
    distribution = SpanMixture(first=always_one, second=LongSpan(), second_probability=0.3)
    long = np.mean([distribution(20, random)[0][1] >= 10 for _ in range(count)])
    assert abs(long - 0.3) < 4.5 * math.sqrt(0.3 * 0.7 / count)


def test_span_order_is_shuffled_but_not_span_content(system):
    text = [S, *[5 + i % 10 for i in range(60)], E]
    orders: Counter = Counter()
    objective = system.objective
    short = type(objective)(VOCABULARY, PoissonSpans(), start=OPEN)
    for seed in range(300):
        view = short.view(batch_of(text), generator=seeded(seed))
        in_spans = view.positions[0, :, 1] > 0
        positions = view.positions[0, in_spans]
        starts = positions[positions[:, 1] == 1, 0].tolist()
        assert starts.count(starts[0]) == 1
        orders[starts == sorted(starts)] += len(starts) == 2
        within = positions[:, 1].diff()
        assert bool(((within == 1) | (positions[1:, 1] == 1)).all()), "left to right in each span"
    pairs = orders[True] + orders[False]
    assert pairs > 40
    # Two spans come in their own order half of the time.
    assert abs(orders[True] / pairs - 0.5) < 4.5 * math.sqrt(0.25 / pairs)


def test_span_order_is_that_of_the_text_if_not_shuffled():
    text = [S, *[5 + i % 10 for i in range(60)], E]
    in_order = BlankInfilling(VOCABULARY, PoissonSpans(), start=OPEN, shuffled=False)
    for seed in range(20):
        view = in_order.view(batch_of(text), generator=seeded(seed))
        starts = view.positions[0, view.positions[0, :, 1] == 1, 0].tolist()
        assert len(starts) > 1 and starts == sorted(starts)


def test_conditional_scores_equal_stepwise_scores(system):
    """The source's end token follows the blank; sources of two lengths, so that one is padded."""
    sources = batch_of([S, 11, 12, 13, 14, E], [S, 15, E])
    texts = batch_of([S, 5, 6, E], [S, 7, 8, E], condition=sources)
    view = system.objective.view(texts)
    assert view.inputs.tolist() == [
        [S, 11, 12, 13, 14, M, E, OPEN, 5, 6],
        [S, 15, M, E, OPEN, 7, 8, 0, 0, 0],
    ]
    with torch.no_grad():
        at_once = system.log_prob(texts).per_token
        state, stepped = system.start(2, condition=sources), []
        for position in range(1, 4):
            stepped.append(system.peek(state).log_prob(texts.tokens[:, position]))
            state = system.advance(state, texts.tokens[:, position])
    torch.testing.assert_close(torch.stack(stepped, 1), at_once, atol=1e-10, rtol=0)


def test_too_long_texts_and_blanks_are_reported(system):
    source = batch_of([S, *[5] * 70, E])
    with pytest.raises(UserError, match="a text with blanks may have at most 64 tokens, got 73"):
        system.log_prob(batch_of([S, 6, E], condition=source))
    state = system.start(1)
    with torch.no_grad():
        for _ in range(62):
            state = system.advance(state, torch.tensor([5]))
        with pytest.raises(UserError, match="a blank may have at most 63 tokens"):
            system.advance(state, torch.tensor([5]))


def test_infill_decoder_log_prob_equals_the_view(system):
    """Two blanks of one and two tokens, against the view of the clean text with those spans."""
    view = system.objective.view_with_spans(batch_of(TEXT), [[(2, 1), (4, 2)]], [[0, 1]])
    blanked = batch_of([S, 11, 12, M, 14, M, E])
    with torch.no_grad():
        expected = system.target_log_probs(view).log_probs.sum()
        decoder = system.infill_decoder(blanked)
        generated = decoder.linearise_fillings(0, [(13,), (15, 16)])
        assert generated == [13, OPEN, 15, 16]
        state, total = decoder.start(1), 0.0
        for token in [*generated, E]:
            log_probs = decoder.peek(state).log_probs
            assert log_probs.exp().sum().item() == pytest.approx(1.0)
            total += log_probs[0, token].item()
            state = decoder.advance(state, torch.tensor([token]))
    assert total == pytest.approx(expected.item(), abs=1e-10)
    assert decoder.answers(0, generated) == [(13,), (15, 16)]
    assert decoder.answers(0, [13]) == [(13,), ()]


def test_glm_learns_blanks_of_one_to_three_tokens():
    """`5 a`, `6 a a`, `7 a a a`, each before a 9: the token before a blank sets its length."""
    torch.manual_seed(0)
    module = system_module("glm")
    system = module.build(
        replace(module.SIZES["tiny"], long_span_rate=0.0, rate=0.3, mean=2.0), VOCABULARY
    )
    a, texts = 8, [[S, 5, 8, 9, E], [S, 6, 8, 8, 9, E], [S, 7, 8, 8, 8, 9, E]]
    batch = batch_of(*texts * 4)
    optimiser = torch.optim.Adam(system.parameters(), lr=0.01)
    for step in range(100):
        optimiser.zero_grad()
        loss, _ = system.loss(batch, generator=seeded(step))
        (loss.total / loss.count).backward()
        optimiser.step()
    system.eval()
    with torch.no_grad():
        for length, number in ((1, 5), (2, 6), (3, 7)):
            decoder = system.infill_decoder(batch_of([S, number, M, 9, E]))
            state, generated = decoder.start(1), []
            while (
                len(generated) < 5 and (token := int(decoder.peek(state).log_probs.argmax())) != E
            ):
                generated.append(token)
                state = decoder.advance(state, torch.tensor([token]))
            assert generated == [a] * length
