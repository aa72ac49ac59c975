"""BART's noises as laws, and what its source shows, hides and lets the decoder write."""

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


def upper_tail(observed: list[float], expected: list[float]) -> float:
    """The p-value of Pearson's chi-square for cells whose expected counts are above 5."""
    assert min(expected) > 5
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    degrees = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return torch.special.gammaincc(degrees, torch.tensor(statistic / 2).double()).item()


@pytest.mark.parametrize("noise", [TokenMasking(0.3), TokenDeletion(0.3)])
def test_masking_and_deletion_take_each_token_with_the_rate(noise):
    """Within 4 standard errors of a binomial; neighbours are taken independently of each other."""
    places, draw = np.arange(100), random()
    taken = np.zeros((400, 100), dtype=bool)
    for row in taken:
        shown = noise(places, random=draw)
        row[:] = ~np.isin(places, shown)
        kept = shown[shown != MASKED_POSITION]
        assert (np.diff(kept) > 0).all(), "the order stays"
    error = math.sqrt(0.3 * 0.7 / taken.size)
    assert abs(taken.mean() - 0.3) < 4 * error
    both = (taken[:, 1:] & taken[:, :-1]).mean()
    assert abs(both - 0.09) < 4 * math.sqrt(0.09 * 0.91 / taken.size) * math.sqrt(2)


def test_masking_leaves_a_mask_and_deletion_nothing():
    tokens = np.arange(1000)
    masked = TokenMasking(0.3)(tokens, random=random())
    assert len(masked) == 1000 and (masked == MASKED_POSITION).any()
    deleted = TokenDeletion(0.3)(tokens, random=random())
    assert (
        len(deleted) == 1000 - (masked == MASKED_POSITION).sum()
        and not (deleted == MASKED_POSITION).any()
    )


def test_infilling_hides_its_share_exactly():
    """⌈0.3 T⌉ tokens of every text; what is shown keeps its order."""
    noise, draw = TextInfilling(), random()
    for time in range(60):
        shown = noise(np.arange(time), random=draw)
        kept = shown[shown != MASKED_POSITION]
        assert len(kept) == time - math.ceil(3 * time / 10)
        assert (np.diff(kept) > 0).all()


def test_the_lengths_of_spans_are_a_poisson():
    """Chi-square over 0, 1 … 8 and more; of some 20,000 spans one is cut short."""
    spans = TextInfilling().sample_span_lengths(200_000, random())
    assert sum(spans) == 60_000
    counts = Counter(min(length, 9) for length in spans)
    law = [math.exp(-3) * 3**k / math.factorial(k) for k in range(9)]
    law.append(1 - sum(law))
    expected = [len(spans) * p for p in law]
    assert upper_tail([counts[k] for k in range(10)], expected) > 1e-4


def test_each_span_is_one_mask_even_an_empty_one():
    noise, time = TextInfilling(), 500
    shown, spans = (
        noise(np.arange(time), random=random(3)),
        noise.sample_span_lengths(time, random(3)),
    )
    assert 0 in spans, "the case with an empty span is among those tested"
    assert (shown == MASKED_POSITION).sum() == len(spans)
    assert len(shown) == time - 150 + len(spans)


def test_all_layouts_of_a_span_are_equally_likely():
    """A span of 2 (mean 50, cut at ⌈0.4 · 5⌉) can stand at 4 places of 5 tokens."""
    noise, draw, drawn = TextInfilling(rate=0.4, mean=50.0), random(), 4000
    counts = Counter(tuple(noise(np.arange(5), random=draw).tolist()) for _ in range(drawn))
    layouts = [(-1, 2, 3, 4), (0, -1, 3, 4), (0, 1, -1, 4), (0, 1, 2, -1)]
    assert set(counts) == set(layouts)
    assert upper_tail([counts[one] for one in layouts], [drawn / 4] * 4) > 1e-4


def test_empty_spans_never_make_a_source_too_long():
    """With a mean of 0.5 most spans are empty; the longest source allowed is the text's length."""
    free, bound, draw = TextInfilling(mean=0.5), TextInfilling(mean=0.5, max_length=10), random()
    assert max(len(free(np.arange(10), random=draw)) for _ in range(200)) > 10
    shown = [bound(np.arange(10), random=draw) for _ in range(200)]
    assert max(map(len, shown)) == 10
    assert all((each != MASKED_POSITION).sum() == 7 for each in shown)


def test_every_order_of_the_sentences_is_equally_likely():
    """Three sentences, six orders; the sentences themselves stay as they are."""
    tokens = np.array([6, 7, STOP, 8, STOP, 9, 10, 11, STOP])
    parts = [(0, 1, 2), (3, 4), (5, 6, 7, 8)]
    noise, draw, drawn = SentencePermutation(SentenceSplitter([STOP])), random(), 3000
    counts = Counter(tuple(noise(tokens, random=draw).tolist()) for _ in range(drawn))
    orders = [sum(order, ()) for order in itertools.permutations(parts)]
    assert set(counts) == set(orders)
    assert upper_tail([counts[order] for order in orders], [drawn / 6] * 6) > 1e-4


def test_a_text_without_an_end_mark_is_one_sentence():
    tokens = np.array([6, 7, 8])
    for seed in range(10):
        shown = SentencePermutation(SentenceSplitter([STOP]))(tokens, random=random(seed))
        assert shown.tolist() == [0, 1, 2]


def test_every_rotation_is_equally_likely():
    noise, draw, drawn = DocumentRotation(), random(), 3000
    counts = Counter(tuple(noise(np.arange(6), random=draw).tolist()) for _ in range(drawn))
    turned = [tuple((first + place) % 6 for place in range(6)) for first in range(6)]
    assert set(counts) == set(turned)
    assert upper_tail([counts[one] for one in turned], [drawn / 6] * 6) > 1e-4


@pytest.mark.parametrize("name", NOISES)
def test_no_noise_minds_an_empty_text(name: str):
    noise = make_noise(name, rate=0.3, mean=3.0, longest=8, sentences=SentenceSplitter([STOP]))
    assert noise(np.zeros(0, dtype=np.int64), random=random()).tolist() == []


def test_an_unknown_noise_is_told_with_the_nearest_one():
    with pytest.raises(UserError, match="'rotation'"):
        bart.build(replace(TINY, noises=("rotating",)), VOCABULARY)


class Words:
    """A tokeniser whose tokens are listed."""

    kind = "word"

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def token(self, id: int) -> str:
        return self.tokens[id]

    def encode(self, text: str) -> list[int]:
        return [self.tokens.index(word) for word in text.split()]


def test_sentences_end_where_the_tokeniser_has_end_marks():
    pieces = Words(
        "a", ".", "dog.", "。", "b;", "x,", "Ġ?", "!</w>", byte_level_spelling("。"), "▁."
    )
    sentences = SentenceSplitter()
    sentences.setup_tokenizer(pieces, len(pieces.tokens))
    assert sentences.ends.tolist() == [1, 2, 3, 4, 6, 7, 8, 9]
    # By hand from GPT-2's table: 0xE3 is itself, 0x80 and 0x82 are the 35th and 37th of the others.
    assert byte_level_spelling("。") == "ã" + chr(0x100 + 33 + 1) + chr(0x100 + 33 + 1 + 2)
    assert not is_sentence_end("a.b")


def test_several_marks_in_a_row_end_one_sentence():
    cut = SentenceSplitter([STOP]).split(np.array([6, STOP, STOP, 7, STOP, 8]))
    assert [part.tolist() for part in cut] == [[0, 1, 2], [3, 4], [5]]


def objective(*noises, **words) -> BARTDenoising:
    return BARTDenoising(DenoisingSpecialTokens.from_vocabulary(VOCABULARY), noises, **words)


def batch_of(*bodies: list[int], end: bool = True, condition: Batch | None = None) -> Batch:
    rows = [[START, *body, *([END] if end else [])] for body in bodies]
    return Batch.collate(rows, PAD, condition=condition)


def test_the_source_is_the_damaged_text_and_the_decoder_writes_the_clean_one():
    """Deletion of nothing, rotation by hand: the view's parts told one by one."""

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
    asked = view.prediction_view
    assert asked.inputs.tolist() == [[START, 6, 7, 8, 9]]
    assert asked.targets is not None and asked.targets.tolist() == [[6, 7, 8, 9, END]]
    assert asked.clean_positions is not None and asked.clean_positions.tolist() == [[1, 2, 3, 4, 5]]


def test_noises_follow_on_one_another():
    """Masking all and then turning: all masks, and no place is shown."""
    view = objective(TokenMasking(1.0), DocumentRotation()).view(batch_of([6, 7, 8]))
    assert view.inputs.tolist() == [[START, MASK, MASK, MASK, END]]
    assert view.clean_positions is not None and (view.clean_positions == -1).all()
    turned = objective(DocumentRotation(), SentencePermutation()).view(
        batch_of([6, 7, 8]), generator=torch.Generator().manual_seed(2)
    )
    assert turned.clean_positions is not None
    shown = turned.clean_positions[0, 1:-1]
    assert sorted(shown.tolist()) == [1, 2, 3]
    assert turned.inputs[0, 1:-1].tolist() == [5 + place for place in shown.tolist()]


def test_one_seed_one_source():
    batch = batch_of(list(range(5, 12)) * 4)
    noise = objective(TextInfilling())
    first, again, other = (
        noise.view(batch, generator=torch.Generator().manual_seed(seed)).inputs
        for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_pair_is_written_beside_its_clean_source():
    source = batch_of([10, 11], [9])
    batch = batch_of([6, 7], [8], condition=source)
    view = objective(TokenMasking(1.0), whole=1.0).view(batch)
    assert torch.equal(view.inputs, source.tokens)
    assert view.prediction_view.targets is not None
    assert view.prediction_view.targets.tolist() == [[6, 7, END], [8, END, NO_TARGET]]


def test_a_share_of_the_texts_is_hidden_as_a_whole():
    """0.25 of 2,000 within 4 standard errors; the source is then one mask."""
    batch = batch_of(*[[6, 7, 8]] * 2000)
    view = objective(whole=0.25).view(batch, generator=torch.Generator().manual_seed(0))
    hidden = view.inputs[:, 1] == MASK
    assert abs(hidden.float().mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 2000)
    assert view.inputs[hidden].unique(dim=0).tolist() == [[START, MASK, END, PAD, PAD]]
    assert view.inputs[~hidden].unique(dim=0).tolist() == [[START, 6, 7, 8, END]]


def test_a_text_that_was_cut_off_is_not_taught_to_end():
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


def test_what_the_source_hides_is_not_seen_where_it_is_written():
    """A hidden token changed, nothing changes up to where it is predicted; a shown one is seen."""
    system, body = small_bart(noises=("infilling",)), [6, 7, 8, 9, 10, 6, 7, 8]
    hidden = shown = 0
    for place in range(len(body)):
        other = [*body[:place], 11, *body[place + 1 :]]
        views = [
            system.objective.view(batch_of(each), generator=torch.Generator().manual_seed(1))
            for each in (body, other)
        ]
        with torch.no_grad():
            fixed = replace(views[1].prediction_view, targets=views[0].prediction_view.targets)
            before = system.target_log_probs(views[0]).to_dense()[0]
            after = system.target_log_probs(replace(views[1], decoder=fixed)).to_dense()[0]
        if (views[0].clean_positions == place + 1).any():
            shown += 1
            assert not torch.equal(after[: place + 1], before[: place + 1])
        else:
            hidden += 1
            torch.testing.assert_close(after[: place + 1], before[: place + 1])
    assert hidden == 3 and shown == 5  # ⌈0.3 · 8⌉ = 3


def test_no_place_of_the_decoder_sees_a_later_one():
    system = small_bart()
    view = system.objective.view(batch_of([6, 7, 8, 9]), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = system.target_log_probs(view).to_dense()[0]
        for place in range(5):
            inputs = view.prediction_view.inputs.clone()
            inputs[0, place] = 11
            other = replace(view, decoder=replace(view.prediction_view, inputs=inputs))
            after = system.target_log_probs(other).to_dense()[0]
            assert torch.equal(after[:place], before[:place])
            assert not torch.equal(after[place:], before[place:])


def test_the_score_of_a_text_is_that_of_writing_it_beside_one_mask():
    system = small_bart()
    batch = batch_of([6, 7, 8], [9])
    source = Batch.collate([[START, MASK, END]] * 2, PAD)
    with torch.no_grad():
        alone = system.log_prob(batch).per_token
        beside = system.log_prob(replace(batch, condition=source)).per_token
        other = Batch.collate([[START, 10, END]] * 2, PAD)
        elsewhere = system.log_prob(replace(batch, condition=other)).per_token
    assert torch.equal(alone, beside)
    assert not torch.allclose(alone, elsewhere)


@pytest.mark.parametrize("start", [True, False])
def test_tokens_are_encoded_at_their_own_places(start: bool):
    """Of a text that was cut off too, and where sources have no start symbol."""
    system = small_bart(source_has_start=start)
    batch = Batch.collate([[START, 6, 7, 8], [START, 9, END]], PAD)
    source = batch.tokens if start else batch.tokens[:, 1:]
    lengths = batch.lengths if start else batch.lengths - 1
    with torch.no_grad():
        found = system.encode_tokens(batch)
        view = View(inputs=source, lengths=lengths, attention_mask=FullMask())
        expected = system.backbone.run_encoder(view)
    assert found.shape[:2] == batch.tokens.shape
    torch.testing.assert_close(found[:, 0 if start else 1 :], expected)


def test_other_opening_symbols_are_given_and_not_predicted():
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
        for place, token in enumerate(batch.tokens.T[1:]):
            stepped = system.peek(state).log_probs[[0, 1], token]
            real = batch.lengths > place + 1
            torch.testing.assert_close(stepped[real], scored[:, place][real], atol=1e-5, rtol=0)
            state = system.advance(state, token)
    assert scored.shape == (2, 4)


def test_a_tokeniser_without_a_mask_symbol_is_told():
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
    ids=["two", "none", "own", "nothing", "beside", "several", "cut off"],
)
def test_the_contents_of_blanks_are_read_off_the_text(pattern, text, contents):
    assert align_template(pattern, text) == contents


def test_rewriting_allows_the_texts_that_fit_and_scores_them_as_the_system_does():
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
    writer, allowed = system.infill_decoder(batch), 0
    for length in range(5):
        for text in itertools.product((1, 5, 6), repeat=length):
            with torch.no_grad():
                state, total = writer.start(3), torch.zeros(3)
                for token in (*text, END):
                    total = total + writer.peek(state).log_probs[:, token]
                    state = writer.advance(state, torch.full((3,), token))
                whole = Batch.collate([[START, *text, END]] * 3, PAD, condition=batch)
                expected = system.log_prob(whole).totals
            for row, fit in enumerate(fits):
                assert math.isfinite(total[row]) == fit(text)
                if fit(text):
                    allowed += 1
                    torch.testing.assert_close(total[row], expected[row], atol=1e-4, rtol=0)
                    contents = writer.answers(row, text)
                    assert len(contents) == blanked[row].count(MASK)
                    assert tuple(writer.linearise_fillings(row, contents)) == text
    assert allowed > 20


def test_a_symbol_inside_a_text_with_blanks_is_told():
    system = small_bart()
    with pytest.raises(UserError, match="words and mask tokens"):
        system.infill_decoder(Batch.collate([[START, 6, END, MASK, END]], PAD))
