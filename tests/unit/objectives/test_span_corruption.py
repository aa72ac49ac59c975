"""T5's objectives: span distribution, sources and targets, log-probability and infilling."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.special_tokens import SentinelTokens
from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary
from lmlab.objectives.span_corruption import MaskedTexts, RandomSpanMasking, SpanCorruption
from lmlab.objectives.text_to_text import PrefixLM, TextToTextObjective, text_positions
from lmlab.zoo import t5

VOCABULARY = Vocabulary(size=40)
PAD, START, END, MASK = 0, 2, 3, 4
SENTINELS, DECODER_VOCABULARY = SentinelTokens.allocate(VOCABULARY, 10)
X = SENTINELS.ids


def batch_of(*texts: list[int], condition: Batch | None = None) -> Batch:
    rows = [[START, *text, END] for text in texts]
    return Batch.collate(rows, pad=PAD, condition=condition)


def sample_masks(spans: RandomSpanMasking, size: int, rows: int, seed: int = 0) -> torch.Tensor:
    """(rows, size) sampled masks of many texts of one length."""
    batch = batch_of(*[list(range(5, 5 + size))] * rows)
    generator = torch.Generator().manual_seed(seed)
    return spans(batch, text_positions(batch, END), generator=generator)[:, 1:-1]


def span_lengths(mask: list[bool]) -> list[int]:
    return [len(list(run)) for masked, run in itertools.groupby(mask) if masked]


def rows_of(view_inputs: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
    return [
        row[:length] for row, length in zip(view_inputs.tolist(), lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize("anywhere", [True, False])
@pytest.mark.parametrize(
    ("size", "rate", "mean"),
    [(30, 0.15, 3.0), (100, 0.15, 3.0), (33, 0.5, 2.0), (20, 0.25, 10.0), (12, 0.15, 3.0)],
)
def test_masked_token_and_span_counts_are_exact(anywhere, size, rate, mean):
    """As in Raffel et al.: round(rate · n) tokens in round(that / mean) spans, in every text."""
    sampled_masks = sample_masks(
        RandomSpanMasking(rate=rate, mean=mean, free_placement=anywhere), size, 200
    )
    masked_count = round(size * rate)
    spans = max(1, round(masked_count / mean))
    for mask in sampled_masks.tolist():
        assert sum(mask) == masked_count
        assert len(span_lengths(mask)) == spans


def test_span_counts_of_the_papers_500_token_example():
    """§3.3.4: 500 tokens, 15 % in 25 spans are 75 tokens of mean length 3."""
    masked_count, spans = RandomSpanMasking(rate=0.15, mean=3.0).counts(torch.tensor([500]))
    assert (masked_count.item(), spans.item()) == (75, 25)


def all_masks(size: int, masked_count: int, spans: int, anywhere: bool) -> list[tuple[bool, ...]]:
    possible = []
    for positions in itertools.combinations(range(size), masked_count):
        mask = tuple(position in positions for position in range(size))
        edges = anywhere or (not mask[0] and mask[-1])
        if edges and len(span_lengths(list(mask))) == spans:
            possible.append(mask)
    return possible


@pytest.mark.parametrize("anywhere", [True, False])
def test_masks_with_given_counts_are_uniform(anywhere: bool):
    """Of 8 tokens 4 are masked in 2 spans: 3 ways to divide them, and C(5, 2) = 10
    ways to arrange the 4 visible ones around two spans, 3 if some must come first and none last."""
    possible = all_masks(8, 4, 2, anywhere)
    assert len(possible) == 3 * (10 if anywhere else 3)
    rows = 6000
    sampled_masks = sample_masks(
        RandomSpanMasking(rate=0.5, mean=2.0, free_placement=anywhere), 8, rows
    )
    counts = Counter(tuple(mask) for mask in sampled_masks.tolist())
    assert set(counts) == set(possible)
    expected = rows / len(possible)
    statistic = sum((counts[mask] - expected) ** 2 / expected for mask in possible)
    degrees = torch.tensor((len(possible) - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    assert torch.special.gammaincc(degrees, half) > 1e-4


def test_span_masking_of_a_batch_of_all_lengths():
    """A single token is masked, of more at least one is visible; rows do not mix."""
    texts = [[], [5], [5, 6], [5, 6, 7], list(range(5, 25))]
    batch = batch_of(*texts)
    masked = RandomSpanMasking(rate=0.9, mean=1.0)(
        batch, text_positions(batch, END), generator=torch.Generator().manual_seed(0)
    )
    assert masked.sum(1).tolist() == [0, 1, 1, 2, 18]
    assert not (masked & ~text_positions(batch, END)).any()
    # 2 of 20 tokens are visible, so there is room for at most 3 spans.
    assert len(span_lengths(masked[4].tolist())) == 3


def objective(**settings) -> SpanCorruption:
    spans = settings.pop("spans", RandomSpanMasking())
    return SpanCorruption(
        VOCABULARY, SENTINELS, spans, decoder_vocabulary=DECODER_VOCABULARY, **settings
    )


def test_corruption_view_equals_the_figure_of_the_paper():
    """Thank you for inviting me to your party last week → ⟨X⟩ for inviting ⟨Y⟩ last ⟨Z⟩."""
    words = "Thank you for inviting me to your party last week".split()
    thank, you, inserted, inviting, me, to, your, party, last, week = range(5, 15)
    batch = batch_of(list(range(5, 15)))
    masked = torch.tensor(
        [[False, *[word in ("for", "inviting", "last") for word in words], False]]
    )
    position = torch.arange(12)[None]
    view = objective().corruption_view(
        MaskedTexts(batch.tokens, batch.targets_mask(), masked, position)
    )
    assert rows_of(view.inputs, view.lengths) == [
        [thank, you, X[0], me, to, your, party, X[1], week, END]
    ]
    targets = [X[0], inserted, inviting, X[1], last, X[2], END]
    assert view.decoder is not None and view.decoder.targets is not None
    assert view.decoder.targets.tolist() == [targets]
    assert view.decoder.inputs.tolist() == [[START, *targets[:-1]]]
    assert view.decoder.clean_positions.tolist() == [[-1, 3, 4, -1, 9, -1, -1]]
    closed = objective(final_sentinel=False)
    view = closed.corruption_view(MaskedTexts(batch.tokens, batch.targets_mask(), masked, position))
    assert view.decoder.targets.tolist() == [[X[0], inserted, inviting, X[1], last, END]]


def restore_text(source: list[int], target: list[int]) -> list[int]:
    """The clean text, from the source and the target."""
    answers: dict[int, list[int]] = {}
    for token in target:
        if token in X:
            answers[token] = []
        elif token != END:
            answers[max(answers)].append(token)
    return [token for shown in source for token in (answers[shown] if shown in X else [shown])]


def test_source_and_targets_restore_the_text():
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(5, 40, (size,), generator=generator).tolist() for size in range(1, 30)]
    batch = batch_of(*texts)
    corruption = objective(spans=RandomSpanMasking(rate=0.4, mean=2.0), full_mask_rate=0.2)
    view = corruption.view(batch, generator=generator)
    targets = rows_of(view.decoder.targets, view.decoder.lengths)
    for text, source, target in zip(
        texts, rows_of(view.inputs, view.lengths), targets, strict=True
    ):
        assert restore_text(source, target) == [*text, END]
    beyond = torch.arange(view.decoder.targets.shape[1]) >= view.decoder.lengths[:, None]
    assert (view.decoder.targets[beyond] == NO_TARGET).all()
    assert (view.decoder.inputs[beyond] == PAD).all()


def test_full_mask_rate_masks_whole_texts():
    """4000 draws at 0.3: within 4 standard errors, 4 · √(0.3 · 0.7 / 4000) = 0.029."""
    view = objective(full_mask_rate=0.3).view(
        batch_of(*[list(range(5, 25))] * 4000), generator=torch.Generator().manual_seed(0)
    )
    fully_masked = view.lengths == 2
    assert fully_masked.float().mean().item() == pytest.approx(0.3, abs=0.029)
    assert (view.inputs[fully_masked][:, :2] == torch.tensor([X[0], END])).all()


def test_span_count_is_limited_by_sentinels():
    few, decoder_vocabulary = SentinelTokens.allocate(VOCABULARY, 4)
    spans = RandomSpanMasking(rate=0.5, mean=1.0)
    corruption = SpanCorruption(VOCABULARY, few, spans, decoder_vocabulary=decoder_vocabulary)
    view = corruption.view(batch_of([5] * 30), generator=torch.Generator().manual_seed(0))
    used = [token for token in view.inputs[0].tolist() if token >= VOCABULARY.size]
    assert used == list(few.ids[:3])
    assert few.ids[3] in view.decoder.targets[0].tolist()


def test_pairs_are_conditioned_on_the_clean_source():
    condition = batch_of([20, 21], [22])
    batch = batch_of([5, 6, 7], [8, 9], condition=condition)
    for each_objective in (
        objective(),
        PrefixLM(VOCABULARY, SENTINELS),
        TextToTextObjective(VOCABULARY, SENTINELS),
    ):
        view = each_objective.view(batch, generator=torch.Generator().manual_seed(0))
        assert rows_of(view.inputs, view.lengths) == [[20, 21, END], [22, END]]
        decoder = view.decoder
        assert rows_of(decoder.inputs, decoder.lengths) == [[START, 5, 6, 7], [START, 8, 9]]
        assert rows_of(decoder.targets, decoder.lengths) == [[5, 6, 7, END], [8, 9, END]]


def test_joined_pairs_are_masked_on_both_sides():
    """Words of the question and of the answer are masked, and both are predicted."""
    questions = [list(range(20, 26)), list(range(26, 29))]
    answers = [list(range(5, 9)), list(range(9, 18))]
    batch = batch_of(*answers, condition=batch_of(*questions))
    corruption = objective(mask_pairs=True, spans=RandomSpanMasking(rate=0.3, mean=2.0))
    for seed in range(20):
        view = corruption.view(batch, generator=torch.Generator().manual_seed(seed))
        sources = rows_of(view.inputs, view.lengths)
        targets = rows_of(view.decoder.targets, view.decoder.lengths)
        clean_positions = rows_of(view.decoder.clean_positions, view.decoder.lengths)
        for row in range(2):
            together = [*questions[row], END, *answers[row], END]
            assert restore_text(sources[row], targets[row]) == together
            assert set(targets[row]) & set(questions[row]) and set(targets[row]) & set(answers[row])
            for token, origin in zip(targets[row], clean_positions[row], strict=True):
                assert origin == (answers[row].index(token) + 1 if token in answers[row] else -1)


def test_joined_pair_is_scored_as_a_trailing_blank():
    condition = batch_of([20, 21])
    view = objective(mask_pairs=True).text_view(batch_of([5, 6], condition=condition))
    assert view.inputs.tolist() == [[20, 21, END, X[0], END]]
    assert view.decoder.inputs.tolist() == [[START, X[0], 5, 6]]
    assert view.decoder.targets.tolist() == [[NO_TARGET, 5, 6, END]]


def test_prefix_lm_split_is_uniform():
    """5 tokens: 0 to 4 are in the prefix, equally often; 4 · √(0.2 · 0.8 / 4000) = 0.025."""
    text = [5, 6, 7, 8, 9]
    view = PrefixLM(VOCABULARY, SENTINELS).view(
        batch_of(*[text] * 4000), generator=torch.Generator().manual_seed(0)
    )
    sources = rows_of(view.inputs, view.lengths)
    targets = rows_of(view.decoder.targets, view.decoder.lengths)
    for source, target in zip(sources, targets, strict=True):
        assert source[-1] == END and [*source[:-1], *target] == [*text, END]
    prefix_lengths = Counter(len(source) - 1 for source in sources)
    assert sorted(prefix_lengths) == [0, 1, 2, 3, 4]
    for count in prefix_lengths.values():
        assert count / 4000 == pytest.approx(0.2, abs=0.025)


def test_language_modelling_has_an_empty_source():
    view = TextToTextObjective(VOCABULARY, SENTINELS).view(batch_of([5, 6]))
    assert view.inputs.tolist() == [[END]]
    assert view.decoder.inputs.tolist() == [[START, 5, 6]]


SMALL = Vocabulary(size=7)


def system(**settings):
    torch.manual_seed(1)
    config = t5.Config(
        **{"width": 8, "layers": 1, "heads": 2, "length": 16, "sentinels": 4, **settings}
    )
    return t5.build(config, SMALL).eval()


@pytest.mark.parametrize(
    "settings",
    [{"objective": "prefix-lm"}, {"objective": "language-modelling"}, {"pairs": "mask"}, {}],
)
@pytest.mark.parametrize("given", [False, True])
def test_log_prob_sums_to_one_over_texts(settings: dict, given: bool):
    """Texts of <unk>, a and b: complete ones of at most two tokens, unfinished ones of three."""
    network, tokens = system(**settings), (1, 5, 6)
    rows = [[2, *body, 3] for size in range(3) for body in itertools.product(tokens, repeat=size)]
    rows += [[2, *body] for body in itertools.product(tokens, repeat=3)]
    source = Batch.collate([[2, 5, 6, 6, 3]] * len(rows), pad=0) if given else None
    with torch.no_grad():
        totals = network.log_prob(Batch.collate(rows, pad=0, condition=source)).totals
    assert totals.double().exp().sum().item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("settings", [{}, {"pairs": "mask"}, {"objective": "prefix-lm"}])
def test_conditional_scores_equal_stepwise_scores(settings: dict):
    network = system(**settings)
    sources = [[2, 5, 6, 6, 3], [2, 6, 3]]
    texts = [[2, 5, 5, 3], [2, 6, 5, 6, 6, 3]]
    pad = SMALL.pad
    together = Batch.collate(texts, pad, condition=Batch.collate(sources, pad))
    with torch.no_grad():
        scores = network.log_prob(together).per_token
        for row, (source, text) in enumerate(zip(sources, texts, strict=True)):
            condition = Batch.collate([source], pad)
            alone = network.log_prob(Batch.collate([text], pad, condition=condition))
            state, stepped = network.start(1, condition=condition), []
            for token in text[1:]:
                stepped.append(network.peek(state).log_probs[0, token])
                state = network.advance(state, torch.tensor([token]))
            expected = torch.stack(stepped)
            torch.testing.assert_close(alone.per_token[0], expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(scores[row, : len(expected)], expected, atol=1e-5, rtol=0)


def test_end_probability_includes_all_sentinels():
    """p(end) = p(</s>) + Σ p(X_k), and no other token's probability changes."""
    network = system()
    with torch.no_grad():
        state = network.start(1)
        over_all = network.emission.log_probs(state.values)[0].exp()
        probabilities = network.peek(state).log_probs[0].exp()
    assert probabilities.shape == (7,)
    assert probabilities[3].item() == pytest.approx(
        (over_all[3] + over_all[7:].sum()).item(), rel=1e-5
    )
    torch.testing.assert_close(probabilities[[1, 5, 6]], over_all[[1, 5, 6]])


def answer_probabilities(network, text: list[int], blanks: int) -> float:
    """Total probability of answers of at most two tokens per blank and of longer prefixes."""
    decoder = network.infill_decoder(Batch.collate([text], pad=0))
    mass, names = 0.0, network.objective.sentinels.ids

    def follow(state, blank: int, size: int, log_prob: float) -> None:
        nonlocal mass
        log_probs = decoder.peek(state).log_probs[0]
        closing = names[blank + 1] if blank + 1 < blanks else 3
        assert {i for i, p in enumerate(log_probs.tolist()) if p > -math.inf} == {1, 5, 6, closing}
        for token in (1, 5, 6, closing):
            total = log_prob + log_probs[token].item()
            if token == 3 or (token != closing and size == 2):
                mass += math.exp(total)
                continue
            after = decoder.advance(state, torch.tensor([token]))
            closed = token == closing
            follow(after, blank + closed, 0 if closed else size + 1, total)

    with torch.no_grad():
        follow(decoder.start(1), 0, 0, 0.0)
    return mass


@pytest.mark.parametrize("text", [[2, 5, 4, 6, 3], [2, 4, 5, 4, 3]])
def test_answers_to_blanks_are_a_distribution(text: list[int]):
    mass = answer_probabilities(system(), text, text.count(MASK))
    assert mass == pytest.approx(1.0, abs=1e-5)


def test_infill_of_one_blank_equals_log_prob():
    network = system()
    decoder = network.infill_decoder(Batch.collate([[2, 4, 3]], pad=0))
    answer = [5, 6, 6, 3]
    with torch.no_grad():
        expected = network.log_prob(Batch.collate([[2, *answer]], pad=0)).per_token[0]
        state, log_probs = decoder.start(1), []
        for token in answer:
            log_probs.append(decoder.peek(state).log_probs[0, token])
            state = decoder.advance(state, torch.tensor([token]))
    torch.testing.assert_close(torch.stack(log_probs), expected, atol=1e-5, rtol=0)


def test_infill_answers_round_trip():
    network = system()
    names = network.objective.sentinels.ids
    texts = [[2, 5, 4, 6, 4, 3], [2, 4, 3], [2, 5, 4, 4, 4, 3]]
    batch = Batch.collate(texts, pad=0)
    decoder = network.infill_decoder(batch)
    assert rows_of(decoder.view.inputs, decoder.view.lengths) == [
        [5, names[0], 6, names[1], 3],
        [names[0], 3],
        [5, names[0], names[1], names[2], 3],
    ]
    assert decoder.answers(0, [5, 5, names[1], 6, 3]) == [(5, 5), (6,)]
    assert decoder.answers(1, [5, 6]) == [(5, 6)]
    assert decoder.answers(2, [names[1], 5]) == [(), (5,), ()]
    for row, answers in enumerate([[(5, 5), (6,)], [(5,)], [(), (5,), ()]]):
        assert decoder.answers(row, decoder.linearise_fillings(row, answers)) == answers


def test_encoding_ignores_the_start_token_and_the_batch():
    network = system(pairs="mask")
    texts = [[2, 5, 6, 3], [2, 6, 5, 5, 6, 3]]
    with torch.no_grad():
        together = network.encode(Batch.collate(texts, pad=0))
        tokens = network.encode_tokens(Batch.collate(texts, pad=0))
        another_start = network.encode(Batch.collate([[1, 5, 6, 3]], pad=0))
        alone = network.encode(Batch.collate(texts[:1], pad=0))
    assert tokens.shape == (2, 6, 8)
    torch.testing.assert_close(together[0], tokens[0, 1:4].mean(0), atol=1e-6, rtol=0)
    torch.testing.assert_close(alone[0], together[0], atol=1e-5, rtol=0)
    assert torch.equal(another_start, alone)


def test_too_many_blanks_are_reported():
    with pytest.raises(UserError, match="at most 4 blanks, got 5"):
        system().infill_decoder(Batch.collate([[2, 4, 4, 4, 4, 4, 3]], pad=0))


def test_sentinels_of_the_tokenizer_are_used():
    sentinels, decoder_vocabulary = SentinelTokens.allocate(
        Vocabulary(size=32128), 100, first=32099, step=-1
    )
    assert sentinels.ids[:2] == (32099, 32098) and sentinels.ids[-1] == 32000
    assert decoder_vocabulary.size == 32128
    with pytest.raises(UserError, match="do not fit a vocabulary of 50"):
        SentinelTokens.allocate(Vocabulary(size=50), 10, first=45)
    with pytest.raises(UserError, match="end token"):
        SentinelTokens.allocate(Vocabulary(size=50, end=None), 10)


def test_factorised_embedding_is_refused():
    with pytest.raises(UserError, match="the layer width 8"):
        system(embedding_width=4)
