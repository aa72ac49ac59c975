"""Token and span masking, mask replacement and static masking: rates and distributions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.registry import system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.layers.per_example_rng import SPLITMIX_STEP, per_example_generator, splitmix64_hash
from lmlab.objectives.masking.span_masking import SpanMasking, geometric_lengths, harmonic_lengths
from lmlab.objectives.masking.token_masking import (
    IndependentMasking,
    MaskedBatch,
    MaskReplacement,
    StaticMasking,
    maskable_positions,
)
from lmlab.objectives.masking.whole_word_masking import WholeWordMasking, WordUnits

VOCABULARY = Vocabulary(size=30)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_batch(rows: int, words: int, *, seed: int = 0, size: int = 30) -> Batch:
    tokens = torch.randint(5, size, (rows, words), generator=seeded(seed)).tolist()
    return Batch.collate([[2, *row, 3] for row in tokens], pad=0)


def within_binomial_error(hits: int, trials: int, rate: float, *, errors: float = 5) -> bool:
    return abs(hits - trials * rate) < errors * math.sqrt(trials * rate * (1 - rate))


def chi_square_p_value(observed: np.ndarray, expected: np.ndarray) -> float:
    """Upper tail of Pearson's statistic."""
    half = torch.tensor((((observed - expected) ** 2) / expected).sum() / 2, dtype=torch.float64)
    degrees = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(degrees, half).item()


@pytest.mark.parametrize("choice", ["tokens", "words", "spans"])
def test_fifteen_percent_of_tokens_are_masked(choice: str):
    """Of 200 texts of 100 tokens; spans mask exactly 15 words of 100."""
    words = WordUnits(VOCABULARY)
    chosen = {
        "tokens": IndependentMasking(0.15),
        "words": WholeWordMasking(words, 0.15),
        "spans": SpanMasking(units=words, rate=0.15),
    }[choice]
    batch = random_batch(200, 100)
    allowed = maskable_positions(batch, VOCABULARY)
    masked = chosen(batch, allowed, generator=seeded())
    assert not (masked & ~allowed).any()
    assert allowed.sum() == 200 * 100
    if choice == "spans":
        assert masked.sum(1).tolist() == [15] * 200
    else:
        assert within_binomial_error(int(masked.sum()), 20_000, 0.15)


@pytest.mark.parametrize(
    "make", [lambda w: IndependentMasking(0.15), WholeWordMasking, lambda w: SpanMasking(units=w)]
)
def test_every_text_has_a_mask_but_no_masked_special_token(make):
    choice = make(WordUnits(VOCABULARY))
    batch = Batch.collate([[2, 7, 3], [2, 7, 8, 3], [2, 3], [2, 9, 9, 9, 9, 9, 3]], pad=0)
    allowed = maskable_positions(batch, VOCABULARY)
    for seed in range(20):
        masked = choice(batch, allowed, generator=seeded(seed))
        assert (masked.sum(1) >= 1).tolist() == [True, True, False, True]
        assert not (masked & ~allowed).any()


def test_mask_replacement_is_80_10_10():
    """80 / 10 / 10; a random token is the old one by chance in 1 of 26 (30 - 4 special tokens)."""
    batch = random_batch(200, 100)
    chosen = maskable_positions(batch, VOCABULARY)
    inputs = MaskReplacement(vocabulary=VOCABULARY)(batch.tokens, chosen, generator=seeded())
    before, after = batch.tokens[chosen], inputs[chosen]
    count = len(before)
    assert within_binomial_error(int((after == VOCABULARY.mask).sum()), count, 0.8)
    assert within_binomial_error(int((after == before).sum()), count, 0.1 + 0.1 / 26)
    swapped = (after != before) & (after != VOCABULARY.mask)
    assert within_binomial_error(int(swapped.sum()), count, 0.1 * 25 / 26)
    # Random replacements are uniform over predictable tokens other than the end.
    counts = np.bincount(after[swapped].numpy(), minlength=30)
    assert counts[[0, 2, 3, 4]].sum() == 0
    # A token replaces any of the others: of <unk>, which no text has, 25/25 remain.
    assert chi_square_p_value(counts[5:], np.full(25, counts[5:].sum() / 25)) > 1e-6
    assert torch.equal(inputs[~chosen], batch.tokens[~chosen])


def test_replacement_rates_must_sum_to_at_most_one():
    assert MaskReplacement(vocabulary=VOCABULARY, mask=0.9, random=0.1).random == 0.1
    with pytest.raises(UserError, match=r"\(0\.9\) and a random token \(0\.2\) .* at most 1"):
        MaskReplacement(vocabulary=VOCABULARY, mask=0.9, random=0.2)


def test_per_span_replacement_treats_a_span_as_one():
    """Spans of 4 in every 5 positions: one replacement for each span, 80 / 10 / 10."""
    batch = random_batch(400, 50, size=2000)
    vocabulary = replace(VOCABULARY, size=2000)
    position = torch.arange(batch.tokens.shape[1])
    chosen = maskable_positions(batch, vocabulary) & (position % 5 != 0)
    replacement = MaskReplacement(vocabulary=vocabulary, per_span=True)
    inputs = replacement(batch.tokens, chosen, generator=seeded())
    runs = {"mask": 0, "kept": 0, "random": 0}
    for row in range(len(batch)):
        for first in range(1, 50, 5):
            before, after = batch.tokens[row, first : first + 4], inputs[row, first : first + 4]
            masked, same = after == vocabulary.mask, after == before
            assert masked.all() or not masked.any()
            # A random token is the old one by chance, once in 1,996 times.
            kind = "mask" if masked.all() else "kept" if same.all() else "random"
            assert kind != "random" or same.sum() <= 1
            runs[kind] += 1
    assert sum(runs.values()) == 4000
    for kind, rate in {"mask": 0.8, "kept": 0.1, "random": 0.1}.items():
        assert within_binomial_error(runs[kind], 4000, rate)


def draws(count: int, generator: torch.Generator) -> list[list[float]]:
    return torch.rand(3, count, generator=generator).tolist()


def test_span_lengths_are_geometric_with_mean_3_8():
    """p = 0.2 up to ten: Σ l 0.2·0.8^(l-1) / (1 - 0.8^10) = (5 - 15·0.8^10) / (1 - 0.8^10)."""
    distribution = geometric_lengths(0.2, 10)
    mean = sum(length * p for length, p in enumerate(distribution, start=1))
    assert mean == pytest.approx((5 - 15 * 0.8**10) / (1 - 0.8**10))
    assert mean == pytest.approx(3.8, abs=0.005)
    # Texts of 4,000 words, so that the truncated last span of each is one in 160.
    lengths: list[int] = []
    for seed in range(30):
        laid = SpanMasking(units=WordUnits(VOCABULARY)).place_spans(4000, draws(4001, seeded(seed)))
        lengths += [length for _, length in laid]
        assert sum(length for _, length in laid) == 600
        ends = [first + length for first, length in laid]
        assert all(end < first for end, (first, _) in zip(ends, laid[1:], strict=False))
        assert ends[-1] <= 4000
    counts = np.bincount(lengths, minlength=11)[1:]
    assert counts.sum() > 4500
    assert chi_square_p_value(counts, counts.sum() * np.array(distribution)) > 1e-6


def test_span_placement_is_uniform():
    """One span of two words in five: four positions, each a quarter of 4,000 samples."""
    spans, generator = (
        SpanMasking(units=WordUnits(VOCABULARY), rate=0.4, lengths=(0.0, 1.0)),
        seeded(),
    )
    firsts = [spans.place_spans(5, draws(6, generator))[0][0] for _ in range(4000)]
    counts = np.bincount(firsts, minlength=4)
    assert len(counts) == 4
    assert chi_square_p_value(counts, np.full(4, 1000.0)) > 1e-6


def test_albert_ngram_lengths_are_harmonic():
    """1 : 1/2 : 1/3 of 11/6."""
    assert harmonic_lengths(3) == pytest.approx((6 / 11, 3 / 11, 2 / 11))


def test_spans_leave_a_boundary_on_either_side():
    """Also in a truncated text without an end token."""
    batch = Batch.collate([[2, 5, 6], [2, 7, 8, 9, 5]], pad=0)
    allowed = maskable_positions(batch, VOCABULARY)
    for seed in range(20):
        masked = SpanMasking(units=WordUnits(VOCABULARY), rate=0.9)(
            batch, allowed, generator=seeded(seed)
        )
        assert masked.any(1).all()
        assert not masked[0, 2] and not masked[1, 4] and not masked[:, 0].any()


def sample_masking(batch: Batch, generator: torch.Generator | None) -> MaskedBatch:
    chosen = IndependentMasking(0.15)(
        batch, maskable_positions(batch, VOCABULARY), generator=generator
    )
    replacement = MaskReplacement(vocabulary=VOCABULARY)
    return MaskedBatch(masked=chosen, inputs=replacement(batch.tokens, chosen, generator=generator))


def test_static_masking_is_the_same_in_every_epoch():
    """Whatever the batch and the generator; other texts get other masks."""
    batch, once = random_batch(6, 40), StaticMasking(duplicates=1)
    first = once(sample_masking, batch, generator=seeded(0))
    other_order = batch.select([3, 0, 5, 1])
    wider = replace(other_order, tokens=torch.nn.functional.pad(other_order.tokens, (0, 7)))
    second = once(sample_masking, wider, generator=seeded(1))
    assert torch.equal(second.masked[:, :42], first.masked[[3, 0, 5, 1]])
    assert torch.equal(second.inputs[:, :42], first.inputs[[3, 0, 5, 1]])
    assert len({tuple(row) for row in first.masked.tolist()}) == 6
    another = StaticMasking(duplicates=1, seed=1)(sample_masking, batch, generator=seeded(0))
    assert not torch.equal(another.masked, first.masked)


def test_static_masking_duplicates_are_uniform():
    batch, repeats = random_batch(1, 60), StaticMasking(duplicates=10)
    counts: dict[tuple[bool, ...], int] = {}
    for seed in range(400):
        chosen = repeats(sample_masking, batch, generator=seeded(seed)).masked[0]
        counts[tuple(chosen.tolist())] = counts.get(tuple(chosen.tolist()), 0) + 1
    assert len(counts) == 10
    assert chi_square_p_value(np.array(list(counts.values())), np.full(10, 40.0)) > 1e-6


def test_static_masking_follows_the_rates():
    batch = random_batch(300, 50)
    masking = StaticMasking()(sample_masking, batch, generator=seeded())
    masked_count = int(masking.masked.sum())
    assert within_binomial_error(masked_count, 300 * 50, 0.15)
    masks = int((masking.inputs[masking.masked] == VOCABULARY.mask).sum())
    assert within_binomial_error(masks, masked_count, 0.8)


def test_static_spans_do_not_depend_on_the_batch():
    choice = SpanMasking(units=WordUnits(VOCABULARY))
    batch = random_batch(5, 40)
    longer = Batch.collate([*(row.tolist() for row in batch.tokens), [2, *[7] * 60, 3]], pad=0)

    def spans(batch: Batch, generator: torch.Generator | None) -> MaskedBatch:
        chosen = choice(batch, maskable_positions(batch, VOCABULARY), generator=generator)
        return MaskedBatch(masked=chosen, inputs=batch.tokens)

    once = StaticMasking(duplicates=1)
    first, second = once(spans, batch), once(spans, longer)
    assert torch.equal(second.masked[:5, :42], first.masked)
    assert not second.masked[:5, 42:].any()


def test_splitmix64_hash_equals_the_published_values():
    """Its first three numbers from seed 0 are published with the algorithm (Steele et al. 2014)."""
    counted = torch.arange(1, 4) * SPLITMIX_STEP
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [number % 2**64 for number in splitmix64_hash(counted).tolist()] == expected


def test_per_example_rng_is_uniform_and_uncorrelated():
    generator = per_example_generator(0, torch.arange(100), torch.zeros(100).long())
    first, second = (generator.numbers((100, 2, 50), torch.device("cpu")) for _ in range(2))
    together = torch.stack([first, second])
    assert len(together.unique()) > 19_980  # of 2^24 values, 20,000 draws repeat about 12
    counts = np.histogram(together.numpy(), bins=20, range=(0, 1))[0]
    assert chi_square_p_value(counts, np.full(20, 1000.0)) > 1e-6
    for axis in range(1, 4):  # adjacent values along any axis are uncorrelated
        moved = together.roll(1, axis)
        correlation = np.corrcoef(together.flatten().numpy(), moved.flatten().numpy())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(20_000)


def test_contiguous_segments_are_masked_dynamically():
    """Their rows are stream numbers, which do not identify a text."""
    batch = replace(random_batch(4, 30), continues_previous=True)
    first = StaticMasking(duplicates=1)(sample_masking, batch, generator=seeded(0))
    assert not torch.equal(
        first.masked, StaticMasking(duplicates=1)(sample_masking, batch, generator=seeded(1)).masked
    )


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "bert-wwm", "ernie", "spanbert"])
def test_vocabulary_without_mask_token_is_refused(name: str):
    module = system_module(name)
    with pytest.raises(UserError, match=r"mask token.*has neither <mask> nor"):
        module.build(module.SIZES["tiny"], Vocabulary(size=30, mask=None))
