"""BART denoising: noise distributions, corrupted sources, decoder targets and infilling."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from lmlab.core.attention_mask import FullMask
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import Infill
from lmlab.core.view import NO_TARGET, View
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.denoising_seq2seq import TEMPLATE_BLANK, align_template
from lmlab.objectives.denoising import (
    MASKED_POSITION,
    NOISES,
    BARTDenoising,
    DocumentRotation,
    SentencePermutation,
    TextInfilling,
    TokenDeletion,
    TokenMasking,
    make_noise,
)
from lmlab.objectives.denoising_base import (
    DenoisingSpecialTokens,
    SentenceSplitter,
    byte_level_spelling,
    is_sentence_end,
)
from lmlab.zoo import bart

VOCABULARY = Vocabulary(size=12)
PAD, START, END, MASK = 0, 2, 3, 4
STOP = 5
"""The token that ends sentences here."""
TINY = replace(bart.SIZES["tiny"], width=8, layers=1, full_mask_rate=0.0)


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def chi_square_p_value(observed: list[float], expected: list[float]) -> float:
    """The p-value of Pearson's chi-square for cells whose expected counts are above 5."""
    assert min(expected) > 5
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    degrees = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(degrees, torch.tensor(statistic / 2).double()).item()


@pytest.mark.parametrize("noise", [TokenMasking(0.3), TokenDeletion(0.3)])
def test_masking_and_deletion_follow_the_noise_rate(noise):
    """Within 4 standard errors of a binomial; adjacent tokens are chosen independently."""
    positions, draw = np.arange(100), random()
    taken = np.zeros((400, 100), dtype=bool)
    for row in taken:
        shown = noise(positions, random=draw)
        row[:] = ~np.isin(positions, shown)
        visible = shown[shown != MASKED_POSITION]
        assert (np.diff(visible) > 0).all(), "the order stays"
    error = math.sqrt(0.3 * 0.7 / taken.size)
    assert abs(taken.mean() - 0.3) < 4 * error
    both = (taken[:, 1:] & taken[:, :-1]).mean()
    assert abs(both - 0.09) < 4 * math.sqrt(0.09 * 0.91 / taken.size) * math.sqrt(2)


def test_masking_inserts_masks_and_deletion_removes_tokens():
    tokens = np.arange(1000)
    masked = TokenMasking(0.3)(tokens, random=random())
    assert len(masked) == 1000 and (masked == MASKED_POSITION).any()
    deleted = TokenDeletion(0.3)(tokens, random=random())
    assert (
        len(deleted) == 1000 - (masked == MASKED_POSITION).sum()
        and not (deleted == MASKED_POSITION).any()
    )


def test_text_infilling_masks_exactly_its_rate():
    """⌈0.3 T⌉ tokens of every text; visible tokens keep their order."""
    noise, draw = TextInfilling(), random()
    for time in range(60):
        shown = noise(np.arange(time), random=draw)
        visible = shown[shown != MASKED_POSITION]
        assert len(visible) == time - math.ceil(3 * time / 10)
        assert (np.diff(visible) > 0).all()


def test_infilling_span_lengths_are_poisson():
    """Chi-square over 0, 1 … 8 and more; of some 20,000 spans one is cut short."""
    spans = TextInfilling().sample_span_lengths(200_000, random())
    assert sum(spans) == 60_000
    counts = Counter(min(length, 9) for length in spans)
    poisson = [math.exp(-3) * 3**k / math.factorial(k) for k in range(9)]
    poisson.append(1 - sum(poisson))
    expected = [len(spans) * p for p in poisson]
    assert chi_square_p_value([counts[k] for k in range(10)], expected) > 1e-4


def test_each_span_becomes_one_mask_even_when_empty():
    noise, time = TextInfilling(), 500
    shown, spans = (
        noise(np.arange(time), random=random(3)),
        noise.sample_span_lengths(time, random(3)),
    )
    assert 0 in spans, "the test must include an empty span"
    assert (shown == MASKED_POSITION).sum() == len(spans)
    assert len(shown) == time - 150 + len(spans)


def test_span_placement_is_uniform():
    """A span of 2 (mean 50, cut at ⌈0.4 · 5⌉) can start at 4 positions of 5 tokens."""
    noise, draw, trials = TextInfilling(rate=0.4, mean=50.0), random(), 4000
    counts = Counter(tuple(noise(np.arange(5), random=draw).tolist()) for _ in range(trials))
    layouts = [(-1, 2, 3, 4), (0, -1, 3, 4), (0, 1, -1, 4), (0, 1, 2, -1)]
    assert set(counts) == set(layouts)
    assert chi_square_p_value([counts[layout] for layout in layouts], [trials / 4] * 4) > 1e-4


def test_empty_spans_respect_the_maximum_source_length():
    """With a mean of 0.5 most spans are empty; the longest source allowed has the text's length."""
    free, bound, draw = TextInfilling(mean=0.5), TextInfilling(mean=0.5, max_length=10), random()
    assert max(len(free(np.arange(10), random=draw)) for _ in range(200)) > 10
    sources = [bound(np.arange(10), random=draw) for _ in range(200)]
    assert max(map(len, sources)) == 10
    assert all((source != MASKED_POSITION).sum() == 7 for source in sources)


def test_sentence_permutations_are_uniform():
    """Three sentences, six orders; the sentences themselves stay as they are."""
    tokens = np.array([6, 7, STOP, 8, STOP, 9, 10, 11, STOP])
    parts = [(0, 1, 2), (3, 4), (5, 6, 7, 8)]
    noise, draw, trials = SentencePermutation(SentenceSplitter([STOP])), random(), 3000
    counts = Counter(tuple(noise(tokens, random=draw).tolist()) for _ in range(trials))
    orders = [sum(order, ()) for order in itertools.permutations(parts)]
    assert set(counts) == set(orders)
    assert chi_square_p_value([counts[order] for order in orders], [trials / 6] * 6) > 1e-4


def test_text_without_punctuation_is_one_sentence():
    tokens = np.array([6, 7, 8])
    for seed in range(10):
        shown = SentencePermutation(SentenceSplitter([STOP]))(tokens, random=random(seed))
        assert shown.tolist() == [0, 1, 2]


def test_document_rotations_are_uniform():
    noise, draw, trials = DocumentRotation(), random(), 3000
    counts = Counter(tuple(noise(np.arange(6), random=draw).tolist()) for _ in range(trials))
    rotations = [tuple((first + position) % 6 for position in range(6)) for first in range(6)]
    assert set(counts) == set(rotations)
    assert chi_square_p_value([counts[rotation] for rotation in rotations], [trials / 6] * 6) > 1e-4


@pytest.mark.parametrize("name", NOISES)
def test_every_noise_accepts_an_empty_text(name: str):
    noise = make_noise(name, rate=0.3, mean=3.0, max_length=8, sentences=SentenceSplitter([STOP]))
    assert noise(np.zeros(0, dtype=np.int64), random=random()).tolist() == []


def test_unknown_noise_is_reported_with_a_suggestion():
    with pytest.raises(UserError, match="'rotation'"):
        bart.build(replace(TINY, noises=("rotating",)), VOCABULARY)


class StubTokenizer:
    """A tokenizer with a given token list."""

    kind = "word"

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def token(self, id: int) -> str:
        return self.tokens[id]

    def encode(self, text: str) -> list[int]:
        return [self.tokens.index(word) for word in text.split()]


def test_sentence_ends_are_found_from_the_tokenizer():
    pieces = StubTokenizer(
        "a", ".", "dog.", "。", "b;", "x,", "Ġ?", "!</w>", byte_level_spelling("。"), "▁."
    )
    sentences = SentenceSplitter()
    sentences.setup_tokenizer(pieces, len(pieces.tokens))
    assert sentences.ends.tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    # By hand from GPT-2's table: 0xE3 is itself, 0x80 and 0x82 are the 35th and 37th of the others.
    assert byte_level_spelling("。") == "ã" + chr(0x100 + 33 + 1) + chr(0x100 + 33 + 1 + 2)
    assert not is_sentence_end("a.b")


def test_repeated_end_marks_close_one_sentence():
    cut = SentenceSplitter([STOP]).split(np.array([6, STOP, STOP, 7, STOP, 8]))
    assert [part.tolist() for part in cut] == [[0, 1, 2], [3, 4], [5]]


def objective(*noises, **words) -> BARTDenoising:
    return BARTDenoising(DenoisingSpecialTokens.from_vocabulary(VOCABULARY), noises, **words)


def batch_of(*bodies: list[int], end: bool = True, condition: Batch | None = None) -> Batch:
    rows = [[START, *body, *([END] if end else [])] for body in bodies]
    return Batch.collate(rows, PAD, condition=condition)


def test_source_is_corrupted_and_target_is_the_clean_text():
    """A reordering with one mask, by hand: every field of the view."""

    class Turned:
        def __call__(self, tokens: np.ndarray, *, random: np.random.Generator) -> np.ndarray:
            return np.array([2, MASKED_POSITION, 0])

    batch = batch_of([6, 7, 8, 9])
    view = objective(Turned()).view(batch)
    assert view.inputs.tolist() == [[START, 8, MASK, 6, END]]
    assert view.clean_positions is not None and view.clean_positions.tolist() == [
        [-1, 3, -1, 1, -1]
    ]
    assert view.targets is None
    decoder_view = view.prediction_view
    assert decoder_view.inputs.tolist() == [[START, 6, 7, 8, 9]]
    assert decoder_view.targets is not None and decoder_view.targets.tolist() == [[6, 7, 8, 9, END]]
    assert decoder_view.clean_positions is not None and decoder_view.clean_positions.tolist() == [
        [1, 2, 3, 4, 5]
    ]


def test_noises_are_composed_in_order():
    """Masking all, then rotation: all masks, and no clean position."""
    view = objective(TokenMasking(1.0), DocumentRotation()).view(batch_of([6, 7, 8]))
    assert view.inputs.tolist() == [[START, MASK, MASK, MASK, END]]
    assert view.clean_positions is not None and (view.clean_positions == -1).all()
    rotated = objective(DocumentRotation(), SentencePermutation()).view(
        batch_of([6, 7, 8]), generator=torch.Generator().manual_seed(2)
    )
    assert rotated.clean_positions is not None
    shown = rotated.clean_positions[0, 1:-1]
    assert sorted(shown.tolist()) == [1, 2, 3]
    assert rotated.inputs[0, 1:-1].tolist() == [5 + position for position in shown.tolist()]


def test_one_seed_gives_one_corruption():
    batch = batch_of(list(range(5, 12)) * 4)
    noise = objective(TextInfilling())
    first, again, other = (
        noise.view(batch, generator=torch.Generator().manual_seed(seed)).inputs
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_pairs_are_conditioned_on_the_clean_source():
    source = batch_of([10, 11], [9])
    batch = batch_of([6, 7], [8], condition=source)
    view = objective(TokenMasking(1.0), full_mask_rate=1.0).view(batch)
    assert torch.equal(view.inputs, source.tokens)
    assert view.prediction_view.targets is not None
    assert view.prediction_view.targets.tolist() == [[6, 7, END], [8, END, NO_TARGET]]


def test_full_mask_rate_masks_whole_texts():
    """0.25 of 2,000 within 4 standard errors; the source is then one mask."""
    batch = batch_of(*[[6, 7, 8]] * 2000)
    view = objective(full_mask_rate=0.25).view(batch, generator=torch.Generator().manual_seed(0))
    fully_masked = view.inputs[:, 1] == MASK
    assert abs(fully_masked.float().mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 2000)
    assert view.inputs[fully_masked].unique(dim=0).tolist() == [[START, MASK, END, PAD, PAD]]
    assert view.inputs[~fully_masked].unique(dim=0).tolist() == [[START, 6, 7, 8, END]]


def test_truncated_text_has_no_end_token_target():
    view = objective().view(batch_of([6, 7, 8], [9], end=False))
    assert (
        view.prediction_view.targets is not None
        and view.prediction_view.clean_positions is not None
    )
    assert view.prediction_view.targets.tolist() == [[6, 7, 8], [9, NO_TARGET, NO_TARGET]]
    assert view.prediction_view.clean_positions.tolist() == [[1, 2, 3], [1, -1, -1]]


def small_bart(**settings) -> bart.DenoisingSeq2Seq:
    torch.manual_seed(0)
    system = bart.build(replace(TINY, **settings), VOCABULARY).eval()
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return system


def test_masked_tokens_do_not_leak_to_their_predictions():
    """Changing a masked token changes no prediction up to its own; changing a visible one does."""
    system, body = small_bart(noises=("infilling",)), [6, 7, 8, 9, 10, 6, 7, 8]
    masked_count = visible_count = 0
    for position in range(len(body)):
        other = [*body[:position], 11, *body[position + 1 :]]
        views = [
            system.objective.view(batch_of(text), generator=torch.Generator().manual_seed(1))
            for text in (body, other)
        ]
        with torch.no_grad():
            fixed = replace(views[1].prediction_view, targets=views[0].prediction_view.targets)
            before = system.target_log_probs(views[0]).to_dense()[0]
            after = system.target_log_probs(replace(views[1], decoder=fixed)).to_dense()[0]
        if (views[0].clean_positions == position + 1).any():
            visible_count += 1
            assert not torch.equal(after[: position + 1], before[: position + 1])
        else:
            masked_count += 1
            torch.testing.assert_close(after[: position + 1], before[: position + 1])
    assert masked_count == 3 and visible_count == 5  # ⌈0.3 · 8⌉ = 3


def test_decoder_attention_is_causal():
    system = small_bart()
    view = system.objective.view(batch_of([6, 7, 8, 9]), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = system.target_log_probs(view).to_dense()[0]
        for position in range(5):
            inputs = view.prediction_view.inputs.clone()
            inputs[0, position] = 11
            other = replace(view, decoder=replace(view.prediction_view, inputs=inputs))
            after = system.target_log_probs(other).to_dense()[0]
            assert torch.equal(after[:position], before[:position])
            assert not torch.equal(after[position:], before[position:])


def test_unconditional_score_is_conditioned_on_one_mask():
    system = small_bart()
    batch = batch_of([6, 7, 8], [9])
    source = Batch.collate([[START, MASK, END]] * 2, PAD)
    with torch.no_grad():
        alone = system.log_prob(batch).per_token
        given_mask = system.log_prob(replace(batch, condition=source)).per_token
        other = Batch.collate([[START, 10, END]] * 2, PAD)
        given_text = system.log_prob(replace(batch, condition=other)).per_token
    assert torch.equal(alone, given_mask)
    assert not torch.allclose(alone, given_text)


@pytest.mark.parametrize("start", [True, False])
def test_token_encodings_keep_their_positions(start: bool):
    """Also for a truncated text, and where sources have no start token."""
    system = small_bart(source_has_start=start)
    batch = Batch.collate([[START, 6, 7, 8], [START, 9, END]], PAD)
    source = batch.tokens if start else batch.tokens[:, 1:]
    lengths = batch.lengths if start else batch.lengths - 1
    with torch.no_grad():
        encoded = system.encode_tokens(batch)
        view = View(inputs=source, lengths=lengths, attention_mask=FullMask())
        expected = system.backbone.run_encoder(view)
    assert encoded.shape[:2] == batch.tokens.shape
    torch.testing.assert_close(encoded[:, 0 if start else 1 :], expected)


def test_decoder_prefix_is_given_and_not_predicted():
    """As in transformers' BART: </s> <s> before the text. Stepping and scoring agree."""
    system = small_bart(decoder_prefix=(END, START))
    batch = batch_of([6, 7, 8], [9])
    view = system.objective.view(batch)
    assert view.prediction_view.inputs.tolist() == [
        [END, START, 6, 7, 8],
        [END, START, 9, END, PAD],
    ]
    assert view.prediction_view.lengths.tolist() == [5, 3]
    with torch.no_grad():
        scored = system.log_prob(batch).per_token
        state = system.start(2)
        for position, token in enumerate(batch.tokens.T[1:]):
            stepped = system.peek(state).log_probs[[0, 1], token]
            real = batch.lengths > position + 1
            torch.testing.assert_close(stepped[real], scored[:, position][real], atol=1e-5, rtol=0)
            state = system.advance(state, token)
    assert scored.shape == (2, 4)


def test_vocabulary_without_mask_token_is_refused():
    with pytest.raises(UserError, match="mask token"):
        bart.build(TINY, replace(VOCABULARY, mask=None))
    with pytest.raises(UserError, match="12 ids"):
        bart.build(replace(TINY, mask=12), VOCABULARY)


@pytest.mark.parametrize(
    ("pattern", "text", "contents"),
    [
        ([6, TEMPLATE_BLANK, 7], [6, 8, 9, 7], [(8, 9)]),
        ([6, TEMPLATE_BLANK, 7], [6, 7], [()]),
        ([TEMPLATE_BLANK, 6], [6, 6], [(6,)]),
        ([TEMPLATE_BLANK], [], [()]),
        ([TEMPLATE_BLANK, TEMPLATE_BLANK], [6, 7], [(), (6, 7)]),
        ([6, TEMPLATE_BLANK, 7, TEMPLATE_BLANK], [6, 8, 7, 7, 9], [(8,), (7, 9)]),
        ([6, TEMPLATE_BLANK, 7, TEMPLATE_BLANK, 8], [6, 9, 9], [(9, 9), ()]),
    ],
    ids=["two", "none", "repeated", "nothing", "adjacent", "several", "cut off"],
)
def test_template_alignment_recovers_blank_contents(pattern, text, contents):
    assert align_template(pattern, text) == contents


def test_infill_decoder_allows_and_scores_matching_texts():
    """Over all texts of at most 4 tokens of 3 words: finite exactly where the blanks can be filled,
    and then log p(text | text with blanks)."""
    vocabulary = Vocabulary(size=7)
    torch.manual_seed(0)
    system = bart.build(TINY, vocabulary).eval()
    assert isinstance(system, Infill)
    blanked = [[START, 5, MASK, 6, MASK, END], [START, MASK, 5, 5, END], [START, 6, END]]
    batch = Batch.collate(blanked, PAD)
    fits = [
        lambda text: len(text) > 1 and text[0] == 5 and 6 in text[1:],
        lambda text: text[-2:] == (5, 5),
        lambda text: text == (6,),
    ]
    decoder, allowed = system.infill_decoder(batch), 0
    for length in range(5):
        for text in itertools.product((1, 5, 6), repeat=length):
            with torch.no_grad():
                state, total = decoder.start(3), torch.zeros(3)
                for token in (*text, END):
                    total = total + decoder.peek(state).log_probs[:, token]
                    state = decoder.advance(state, torch.full((3,), token))
                whole = Batch.collate([[START, *text, END]] * 3, PAD, condition=batch)
                expected = system.log_prob(whole).totals
            for row, fit in enumerate(fits):
                assert math.isfinite(total[row]) == fit(text)
                if fit(text):
                    allowed += 1
                    torch.testing.assert_close(total[row], expected[row], atol=1e-4, rtol=0)
                    contents = decoder.answers(row, text)
                    assert len(contents) == blanked[row].count(MASK)
                    assert tuple(decoder.linearise_fillings(row, contents)) == text
    assert allowed > 20


def test_special_token_inside_a_template_is_refused():
    system = small_bart()
    with pytest.raises(UserError, match="words and mask tokens"):
        system.infill_decoder(Batch.collate([[START, 6, END, MASK, END]], PAD))
