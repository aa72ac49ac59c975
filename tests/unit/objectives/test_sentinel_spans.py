"""T5's objectives: the law of its spans, what is shown and written, and its log-probability."""

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
SENTINELS, WRITTEN = SentinelTokens.allocate(VOCABULARY, 10)
X = SENTINELS.ids


def batch_of(*texts: list[int], condition: Batch | None = None) -> Batch:
    rows = [[START, *text, END] for text in texts]
    return Batch.collate(rows, pad=PAD, condition=condition)


def masks(spans: RandomSpanMasking, size: int, rows: int, seed: int = 0) -> torch.Tensor:
    """(rows, size) what is hidden of many texts of one length."""
    batch = batch_of(*[list(range(5, 5 + size))] * rows)
    generator = torch.Generator().manual_seed(seed)
    return spans(batch, text_positions(batch, END), generator=generator)[:, 1:-1]


def span_lengths(mask: list[bool]) -> list[int]:
    return [len(list(run)) for hidden, run in itertools.groupby(mask) if hidden]


def rows_of(view_inputs: torch.Tensor, lengths: torch.Tensor) -> list[list[int]]:
    return [
        row[:length] for row, length in zip(view_inputs.tolist(), lengths.tolist(), strict=True)
    ]


@pytest.mark.parametrize("anywhere", [True, False])
@pytest.mark.parametrize(
    ("size", "rate", "mean"),
    [(30, 0.15, 3.0), (100, 0.15, 3.0), (33, 0.5, 2.0), (20, 0.25, 10.0), (12, 0.15, 3.0)],
)
def test_hidden_tokens_and_spans_are_exactly_as_many_as_the_law_says(anywhere, size, rate, mean):
    """As in Raffel et al.: round(rate · n) tokens in round(that / mean) spans, in every text."""
    drawn = masks(RandomSpanMasking(rate=rate, mean=mean, free_placement=anywhere), size, 200)
    hidden = round(size * rate)
    spans = max(1, round(hidden / mean))
    for mask in drawn.tolist():
        assert sum(mask) == hidden
        assert len(span_lengths(mask)) == spans


def test_the_papers_example_of_500_tokens():
    """§3.3.4: 500 tokens, 15 % in 25 spans are 75 tokens of mean length 3."""
    hidden, spans = RandomSpanMasking(rate=0.15, mean=3.0).counts(torch.tensor([500]))
    assert (hidden.item(), spans.item()) == (75, 25)


def all_masks(size: int, hidden: int, spans: int, anywhere: bool) -> list[tuple[bool, ...]]:
    found = []
    for places in itertools.combinations(range(size), hidden):
        mask = tuple(place in places for place in range(size))
        edges = anywhere or (not mask[0] and mask[-1])
        if edges and len(span_lengths(list(mask))) == spans:
            found.append(mask)
    return found


@pytest.mark.parametrize("anywhere", [True, False])
def test_all_masks_with_those_counts_are_equally_likely(anywhere: bool):
    """Of 8 tokens 4 are hidden in 2 spans: 3 ways to divide them, and of the 4 shown ones
    C(5, 2) = 10 ways to stand around two spans, 3 if some must come first and none last."""
    possible = all_masks(8, 4, 2, anywhere)
    assert len(possible) == 3 * (10 if anywhere else 3)
    rows = 6000
    drawn = masks(RandomSpanMasking(rate=0.5, mean=2.0, free_placement=anywhere), 8, rows)
    counts = Counter(tuple(mask) for mask in drawn.tolist())
    assert set(counts) == set(possible)
    expected = rows / len(possible)
    statistic = sum((counts[mask] - expected) ** 2 / expected for mask in possible)
    degrees = torch.tensor((len(possible) - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    assert torch.special.gammaincc(degrees, half) > 1e-4


def test_texts_of_all_lengths_side_by_side():
    """A lone token is hidden, of more at least one is shown, of none none; rows do not mix."""
    texts = [[], [5], [5, 6], [5, 6, 7], list(range(5, 25))]
    batch = batch_of(*texts)
    drawn = RandomSpanMasking(rate=0.9, mean=1.0)(
        batch, text_positions(batch, END), generator=torch.Generator().manual_seed(0)
    )
    assert drawn.sum(1).tolist() == [0, 1, 1, 2, 18]
    assert not (drawn & ~text_positions(batch, END)).any()
    # 2 tokens are shown of 20, so there is room for 3 spans and no more.
    assert len(span_lengths(drawn[4].tolist())) == 3


def objective(**settings) -> SpanCorruption:
    spans = settings.pop("spans", RandomSpanMasking())
    return SpanCorruption(VOCABULARY, SENTINELS, spans, written=WRITTEN, **settings)


def test_the_papers_figure():
    """Thank you for inviting me to your party last week → ⟨X⟩ for inviting ⟨Y⟩ last ⟨Z⟩."""
    words = "Thank you for inviting me to your party last week".split()
    thank, you, inserted, inviting, me, to, your, party, last, week = range(5, 15)
    batch = batch_of(list(range(5, 15)))
    hidden = torch.tensor(
        [[False, *[word in ("for", "inviting", "last") for word in words], False]]
    )
    place = torch.arange(12)[None]
    view = objective().corruption_view(
        MaskedTexts(batch.tokens, batch.targets_mask(), hidden, place)
    )
    assert rows_of(view.inputs, view.lengths) == [
        [thank, you, X[0], me, to, your, party, X[1], week, END]
    ]
    written = [X[0], inserted, inviting, X[1], last, X[2], END]
    assert view.decoder is not None and view.decoder.targets is not None
    assert view.decoder.targets.tolist() == [written]
    assert view.decoder.inputs.tolist() == [[START, *written[:-1]]]
    assert view.decoder.clean_positions.tolist() == [[-1, 3, 4, -1, 9, -1, -1]]
    closed = objective(final=False)
    view = closed.corruption_view(MaskedTexts(batch.tokens, batch.targets_mask(), hidden, place))
    assert view.decoder.targets.tolist() == [[X[0], inserted, inviting, X[1], last, END]]


def put_back(source: list[int], written: list[int]) -> list[int]:
    """The clean text, from what was shown and what is written."""
    answers: dict[int, list[int]] = {}
    for token in written:
        if token in X:
            answers[token] = []
        elif token != END:
            answers[max(answers)].append(token)
    return [token for shown in source for token in (answers[shown] if shown in X else [shown])]


def test_shown_and_written_together_are_the_text():
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(5, 40, (size,), generator=generator).tolist() for size in range(1, 30)]
    batch = batch_of(*texts)
    asking = objective(spans=RandomSpanMasking(rate=0.4, mean=2.0), whole=0.2)
    view = asking.view(batch, generator=generator)
    targets = rows_of(view.decoder.targets, view.decoder.lengths)
    for text, source, written in zip(
        texts, rows_of(view.inputs, view.lengths), targets, strict=True
    ):
        assert put_back(source, written) == [*text, END]
    beyond = torch.arange(view.decoder.targets.shape[1]) >= view.decoder.lengths[:, None]
    assert (view.decoder.targets[beyond] == NO_TARGET).all()
    assert (view.decoder.inputs[beyond] == PAD).all()


def test_a_share_of_the_texts_is_hidden_whole():
    """4000 draws at 0.3: within 4 standard errors, 4 · √(0.3 · 0.7 / 4000) = 0.029."""
    view = objective(whole=0.3).view(
        batch_of(*[list(range(5, 25))] * 4000), generator=torch.Generator().manual_seed(0)
    )
    whole = view.lengths == 2
    assert whole.float().mean().item() == pytest.approx(0.3, abs=0.029)
    assert (view.inputs[whole][:, :2] == torch.tensor([X[0], END])).all()


def test_there_are_never_more_spans_than_sentinels():
    few, written = SentinelTokens.allocate(VOCABULARY, 4)
    spans = RandomSpanMasking(rate=0.5, mean=1.0)
    asking = SpanCorruption(VOCABULARY, few, spans, written=written)
    view = asking.view(batch_of([5] * 30), generator=torch.Generator().manual_seed(0))
    used = [token for token in view.inputs[0].tolist() if token >= VOCABULARY.size]
    assert used == list(few.ids[:3])
    assert few.ids[3] in view.decoder.targets[0].tolist()


def test_of_a_pair_the_second_is_written_beside_the_first():
    condition = batch_of([20, 21], [22])
    batch = batch_of([5, 6, 7], [8, 9], condition=condition)
    for asking in (
        objective(),
        PrefixLM(VOCABULARY, SENTINELS),
        TextToTextObjective(VOCABULARY, SENTINELS),
    ):
        view = asking.view(batch, generator=torch.Generator().manual_seed(0))
        assert rows_of(view.inputs, view.lengths) == [[20, 21, END], [22, END]]
        decoder = view.decoder
        assert rows_of(decoder.inputs, decoder.lengths) == [[START, 5, 6, 7], [START, 8, 9]]
        assert rows_of(decoder.targets, decoder.lengths) == [[5, 6, 7, END], [8, 9, END]]


def test_joined_pairs_have_spans_hidden_on_both_sides():
    """002 §3.5: words of the question and of the answer are masked, and both are predicted."""
    questions = [list(range(20, 26)), list(range(26, 29))]
    answers = [list(range(5, 9)), list(range(9, 18))]
    batch = batch_of(*answers, condition=batch_of(*questions))
    asking = objective(joined=True, spans=RandomSpanMasking(rate=0.3, mean=2.0))
    for seed in range(20):
        view = asking.view(batch, generator=torch.Generator().manual_seed(seed))
        sources = rows_of(view.inputs, view.lengths)
        targets = rows_of(view.decoder.targets, view.decoder.lengths)
        clean_positions = rows_of(view.decoder.clean_positions, view.decoder.lengths)
        for row in range(2):
            together = [*questions[row], END, *answers[row], END]
            assert put_back(sources[row], targets[row]) == together
            assert set(targets[row]) & set(questions[row]) and set(targets[row]) & set(answers[row])
            for token, origin in zip(targets[row], clean_positions[row], strict=True):
                assert origin == (answers[row].index(token) + 1 if token in answers[row] else -1)


def test_a_joined_pair_is_scored_as_a_blank_behind_the_question():
    condition = batch_of([20, 21])
    view = objective(joined=True).text_view(batch_of([5, 6], condition=condition))
    assert view.inputs.tolist() == [[20, 21, END, X[0], END]]
    assert view.decoder.inputs.tolist() == [[START, X[0], 5, 6]]
    assert view.decoder.targets.tolist() == [[NO_TARGET, 5, 6, END]]


def test_prefixes_are_split_evenly():
    """5 tokens: between 0 and 4 are shown, each as often; 4 · √(0.2 · 0.8 / 4000) = 0.025."""
    text = [5, 6, 7, 8, 9]
    view = PrefixLM(VOCABULARY, SENTINELS).view(
        batch_of(*[text] * 4000), generator=torch.Generator().manual_seed(0)
    )
    sources = rows_of(view.inputs, view.lengths)
    targets = rows_of(view.decoder.targets, view.decoder.lengths)
    for source, written in zip(sources, targets, strict=True):
        assert source[-1] == END and [*source[:-1], *written] == [*text, END]
    shown = Counter(len(source) - 1 for source in sources)
    assert sorted(shown) == [0, 1, 2, 3, 4]
    for count in shown.values():
        assert count / 4000 == pytest.approx(0.2, abs=0.025)


def test_language_modelling_shows_nothing():
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
def test_given_a_source_it_steps_as_it_scores_alone_and_in_company(settings: dict):
    network = system(**settings)
    sources = [[2, 5, 6, 6, 3], [2, 6, 3]]
    texts = [[2, 5, 5, 3], [2, 6, 5, 6, 6, 3]]
    pad = SMALL.pad
    together = Batch.collate(texts, pad, condition=Batch.collate(sources, pad))
    with torch.no_grad():
        found = network.log_prob(together).per_token
        for row, (source, text) in enumerate(zip(sources, texts, strict=True)):
            condition = Batch.collate([source], pad)
            alone = network.log_prob(Batch.collate([text], pad, condition=condition))
            state, stepped = network.start(1, condition=condition), []
            for token in text[1:]:
                stepped.append(network.peek(state).log_probs[0, token])
                state = network.advance(state, torch.tensor([token]))
            expected = torch.stack(stepped)
            torch.testing.assert_close(alone.per_token[0], expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(found[row, : len(expected)], expected, atol=1e-5, rtol=0)


def test_the_end_has_the_probability_of_all_that_closes_a_blank():
    """p(end) = p(</s>) + Σ p(X_k), and no other token's probability changes."""
    network = system()
    with torch.no_grad():
        state = network.start(1)
        over_all = network.emission.log_probs(state.values)[0].exp()
        found = network.peek(state).log_probs[0].exp()
    assert found.shape == (7,)
    assert found[3].item() == pytest.approx((over_all[3] + over_all[7:].sum()).item(), rel=1e-5)
    torch.testing.assert_close(found[[1, 5, 6]], over_all[[1, 5, 6]])


def answer_probabilities(network, text: list[int], blanks: int) -> float:
    """The mass of all answers of at most two tokens a blank, and of all longer beginnings."""
    answering = network.infill_decoder(Batch.collate([text], pad=0))
    mass, names = 0.0, network.objective.sentinels.ids

    def follow(state, blank: int, size: int, log_prob: float) -> None:
        nonlocal mass
        log_probs = answering.peek(state).log_probs[0]
        closing = names[blank + 1] if blank + 1 < blanks else 3
        assert {i for i, p in enumerate(log_probs.tolist()) if p > -math.inf} == {1, 5, 6, closing}
        for token in (1, 5, 6, closing):
            total = log_prob + log_probs[token].item()
            if token == 3 or (token != closing and size == 2):
                mass += math.exp(total)
                continue
            after = answering.advance(state, torch.tensor([token]))
            closed = token == closing
            follow(after, blank + closed, 0 if closed else size + 1, total)

    with torch.no_grad():
        follow(answering.start(1), 0, 0, 0.0)
    return mass


@pytest.mark.parametrize("text", [[2, 5, 4, 6, 3], [2, 4, 5, 4, 3]])
def test_answers_to_blanks_are_a_distribution(text: list[int]):
    found = answer_probabilities(system(), text, text.count(MASK))
    assert found == pytest.approx(1.0, abs=1e-5)


def test_a_text_of_one_blank_is_answered_as_it_is_scored():
    network = system()
    answering = network.infill_decoder(Batch.collate([[2, 4, 3]], pad=0))
    answer = [5, 6, 6, 3]
    with torch.no_grad():
        expected = network.log_prob(Batch.collate([[2, *answer]], pad=0)).per_token[0]
        state, found = answering.start(1), []
        for token in answer:
            found.append(answering.peek(state).log_probs[0, token])
            state = answering.advance(state, torch.tensor([token]))
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-5, rtol=0)


def test_answers_are_read_back():
    network = system()
    names = network.objective.sentinels.ids
    texts = [[2, 5, 4, 6, 4, 3], [2, 4, 3], [2, 5, 4, 4, 4, 3]]
    batch = Batch.collate(texts, pad=0)
    answering = network.infill_decoder(batch)
    assert rows_of(answering.view.inputs, answering.view.lengths) == [
        [5, names[0], 6, names[1], 3],
        [names[0], 3],
        [5, names[0], names[1], names[2], 3],
    ]
    assert answering.answers(0, [5, 5, names[1], 6, 3]) == [(5, 5), (6,)]
    assert answering.answers(1, [5, 6]) == [(5, 6)]
    assert answering.answers(2, [names[1], 5]) == [(), (5,), ()]
    for row, answers in enumerate([[(5, 5), (6,)], [(5,)], [(), (5,), ()]]):
        assert answering.answers(row, answering.linearise_fillings(row, answers)) == answers


def test_a_text_is_encoded_without_its_start_and_alone_as_in_company():
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


def test_too_many_blanks_are_told():
    with pytest.raises(UserError, match="at most 4 blanks, got 5"):
        system().infill_decoder(Batch.collate([[2, 4, 4, 4, 4, 4, 3]], pad=0))


def test_sentinels_of_a_tokeniser_are_taken_as_given():
    found, written = SentinelTokens.allocate(Vocabulary(size=32128), 100, first=32099, step=-1)
    assert found.ids[:2] == (32099, 32098) and found.ids[-1] == 32000
    assert written.size == 32128
    with pytest.raises(UserError, match="do not fit a vocabulary of 50"):
        SentinelTokens.allocate(Vocabulary(size=50), 10, first=45)
    with pytest.raises(UserError, match="end token"):
        SentinelTokens.allocate(Vocabulary(size=50, end=None), 10)


def test_a_factorised_embedding_is_refused():
    with pytest.raises(UserError, match="the layer width 8"):
        system(embedding_width=4)
