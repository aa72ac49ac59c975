"""The scorer against token-by-token decoding, which shares none of its code."""

from __future__ import annotations

import itertools
import math
import tracemalloc

import pytest
import torch

from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProbs
from lmlab.core.score import summarise
from lmlab.data.corpus import Layout
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.token_streams import ScoringWindow, right_context, rolling_windows


def stepwise_log_probs(system, ids, state=None):
    """Log-probabilities of the ids one by one through the Step protocol, from <s>."""
    system.eval()
    log_probs = []
    with torch.no_grad():
        state = system.start(1) if state is None else state
        for token in ids:
            log_probs.append(float(system.peek(state).log_probs[0, token]))
            state = system.advance(state, torch.tensor([token]))
    return log_probs


def test_scores_equal_stepping_and_preserve_order(word_tokenizer, tiny_recurrent, sentences):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    texts = [*sentences, "", "cat", *reversed(sentences)]
    scores = list(Scorer(system, word_tokenizer, Layout(), tokens_per_batch=24).score(texts))
    assert [score.text for score in scores] == texts
    for score in scores:
        expected = stepwise_log_probs(
            system, [*word_tokenizer.encode(score.text), word_tokenizer.vocabulary.end]
        )
        assert [token.log_prob for token in score.per_token] == pytest.approx(expected, abs=1e-12)
        assert score.total == pytest.approx(sum(expected), abs=1e-12)
        assert score.tokens == len(expected)
        assert score.characters == len(score.text)
    assert system.largest_batch <= 24


def test_scoring_restores_training_mode_and_grad_state(word_tokenizer, tiny_recurrent, sentences):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    system.train()
    system.dropout.eval()
    scores = Scorer(system, word_tokenizer, Layout()).score(sentences)
    first = next(scores)
    # Between two scores the caller's own modes hold, though the generator is not exhausted.
    assert torch.is_grad_enabled() and system.training and not system.dropout.training
    system.dropout.train()
    again = next(Scorer(system, word_tokenizer, Layout()).score(sentences))
    assert again.total == first.total, "dropout is off while scoring"
    assert system.dropout.training


def test_tokens_have_offsets_and_unknown_flag(word_tokenizer, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout())
    score = scorer.score_one("the  zebra sat")
    assert [(t.token, t.start, t.end, t.unknown) for t in score.per_token] == [
        ("the", 0, 3, False),
        ("zebra", 5, 10, True),
        ("sat", 11, 14, False),
        ("</s>", 14, 14, False),
    ]
    assert score.unknown == 1
    assert next(scorer.score(["the  zebra sat"], per_token=False)).unknown == 1


def test_convention_is_recorded_in_full(word_tokenizer, tiny_recurrent):
    scorer = Scorer(
        tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout(end=False), cut=5
    )
    convention = scorer.score_one("the cat").convention
    assert convention.tokenizer == f"word, {word_tokenizer.vocabulary.size} tokens"
    assert (convention.start, convention.end, convention.max_length) == (True, False, 5)
    assert (convention.window, convention.stride, convention.state_carried) == (None, None, False)


def test_empty_text_scores_only_the_end_token_or_fails(word_tokenizer, tiny_recurrent):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    score = Scorer(system, word_tokenizer, Layout()).score_one("")
    assert score.total == pytest.approx(
        stepwise_log_probs(system, [word_tokenizer.vocabulary.end])[0], abs=1e-12
    )
    assert (score.tokens, score.characters) == (1, 0)
    assert [(t.token, t.start, t.end) for t in score.per_token] == [("</s>", 0, 0)]
    with pytest.raises(UserError, match="nothing to score"):
        Scorer(system, word_tokenizer, Layout(end=False)).score_one(" ")


def test_truncation_applies_only_on_request(word_tokenizer, tiny_recurrent):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    layout = Layout(cut=4)
    text = "the cat sat on"
    whole = Scorer(system, word_tokenizer, layout).score_one(text)
    assert [t.token for t in whole.per_token] == ["the", "cat", "sat", "on", "</s>"]
    cut = Scorer(system, word_tokenizer, layout, cut=4).score_one(text)
    # Four in all: <s> the cat sat; characters to the end of "sat".
    assert [t.token for t in cut.per_token] == ["the", "cat", "sat"]
    assert (cut.characters, cut.tokens) == (11, 3)
    shorter = Scorer(system, word_tokenizer, layout, cut=4).score_one("the cat")
    assert [t.token for t in shorter.per_token] == ["the", "cat", "</s>"]
    equal = next(
        Scorer(system, word_tokenizer, layout, cut=4).score(["the cat sat"], per_token=False)
    )
    assert (equal.tokens, equal.characters) == (3, 11)


@pytest.mark.parametrize("per_token", [True, False])
def test_long_text_is_exact_with_carried_state(word_tokenizer, tiny_recurrent, per_token):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    text = " ".join(itertools.islice(itertools.cycle(["the", "cat", "saw", "a"]), 103))
    short = Scorer(system, word_tokenizer, Layout(), tokens_per_batch=1000).score([text])
    scorer = Scorer(system, word_tokenizer, Layout(), tokens_per_batch=13)
    scores = list(scorer.score(["a cat", text, "a dog"], per_token=per_token))
    assert scores[1].total == pytest.approx(next(short).total, abs=1e-9)
    assert scores[1].tokens == 104
    assert [score.text for score in scores] == ["a cat", text, "a dog"]


def test_stateless_system_without_window_scores_whole_text(word_tokenizer, tiny_recurrent):
    carrying = tiny_recurrent(word_tokenizer.vocabulary)
    alone = tiny_recurrent(word_tokenizer.vocabulary, carries=False)
    text = " ".join(["the cat sat on"] * 20)
    expected = Scorer(carrying, word_tokenizer, Layout()).score_one(text).total
    scored = Scorer(alone, word_tokenizer, Layout(), tokens_per_batch=10).score_one(text)
    assert scored.total == pytest.approx(expected, abs=1e-9)
    assert scored.tokens == 81


def test_contiguous_layout_is_scored_as_one_stream(word_tokenizer, tiny_recurrent, sentences):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    scores = list(
        Scorer(system, word_tokenizer, Layout(kind="contiguous"), tokens_per_batch=7).score(
            sentences
        )
    )
    end = word_tokenizer.vocabulary.end
    stream = [[*word_tokenizer.encode(text), end] for text in sentences]
    with torch.no_grad():
        hidden = torch.zeros(1, 6, dtype=torch.float64)
        state = type(system.start(1))({"hidden": system._next(hidden, torch.tensor([end]))})
    expected = stepwise_log_probs(system, [token for line in stream for token in line], state)
    log_probs = [token.log_prob for score in scores for token in score.per_token]
    assert log_probs == pytest.approx(expected, abs=1e-12)
    assert [score.tokens for score in scores] == [len(line) for line in stream]
    assert scores[0].convention.state_carried and not scores[0].convention.start
    alone = tiny_recurrent(word_tokenizer.vocabulary, carries=False)
    scorer = Scorer(alone, word_tokenizer, Layout(kind="contiguous"), tokens_per_batch=7)
    with pytest.raises(UserError, match="carries its state"):
        list(scorer.score(sentences))


def test_contiguous_layout_with_reset_state_per_line(word_tokenizer, tiny_recurrent, sentences):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    stream = Scorer(system, word_tokenizer, Layout(kind="contiguous"))
    scores = list(stream.with_method().score(sentences))
    assert scores[0].total == pytest.approx(next(stream.score(sentences)).total, abs=1e-12)
    for score in scores:
        alone = next(stream.score([score.text]))
        assert score.total == pytest.approx(alone.total, abs=1e-12)
    assert not scores[0].convention.state_carried and not scores[0].convention.start


def test_rolling_windows_by_hand():
    # Positions 0..10, position 0 is context. The first window scores 1..4, each later one two more.
    assert rolling_windows(11, 4, 2) == [
        ScoringWindow(0, 5, 4),
        ScoringWindow(2, 7, 2),
        ScoringWindow(4, 9, 2),
        ScoringWindow(6, 11, 2),
    ]
    assert rolling_windows(3, 4, 2) == [ScoringWindow(0, 3, 2)]
    # A remainder at the end still has a whole window of context.
    assert rolling_windows(6, 4, 3) == [ScoringWindow(0, 5, 4), ScoringWindow(1, 6, 1)]


def test_rolling_windows_cover_each_token_once_with_lookahead():
    for length, window in itertools.product(range(2, 24), range(1, 9)):
        for stride in range(1, window + 1):
            ahead = right_context(window, stride)
            counted = []
            for begin, end, scored, right in rolling_windows(length, window, stride, ahead):
                assert 0 <= begin < end <= length and end - begin <= window + 1
                scored_positions = range(end - right - scored, end - right)
                assert scored > 0 and scored_positions[0] > begin
                assert right == (0 if end == length else ahead)
                before = scored_positions[0] - begin
                assert begin == 0 or before in (ahead + 1, ahead + 2) or end == length
                counted += scored_positions
            assert counted == list(range(1, length))


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (4, 2), (5, 3), (6, 6)])
def test_rolling_window_limits_context(word_tokenizer, tiny_recurrent, monkeypatch, window, stride):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    text = " ".join(itertools.islice(itertools.cycle(["the", "cat", "saw", "a", "dog"]), 33))
    sequence = [
        word_tokenizer.vocabulary.start,
        *word_tokenizer.encode(text),
        word_tokenizer.vocabulary.end,
    ]
    expected = []
    for position in range(1, len(sequence)):
        later = max(0, -(-(position - window) // stride)) * stride
        end = min(window + later + 1, len(sequence))
        begin = max(0, end - window - 1)
        hidden = torch.zeros(1, 6, dtype=torch.float64)
        with torch.no_grad():
            system.eval()
            for token in sequence[begin:position]:
                hidden = system._next(hidden, torch.tensor([token]))
            expected.append(float(system._log_probs(hidden)[0, sequence[position]]))
    scorer = Scorer(
        system, word_tokenizer, Layout(), window=window, stride=stride, tokens_per_batch=20
    )
    score = scorer.score_one(text)
    assert [t.log_prob for t in score.per_token] == pytest.approx(expected, abs=1e-12)
    assert (score.convention.window, score.convention.stride) == (window, stride)
    # The same by streaming, which is used for texts too long for one batch.
    monkeypatch.setattr("lmlab.scoring.scorer.MAX_CHUNK_CHARACTERS", 20)
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", 16)
    streamed = scorer.score_one(text)
    assert [t.log_prob for t in streamed.per_token] == pytest.approx(expected, abs=1e-12)
    assert [(t.start, t.end) for t in streamed.per_token] == [
        (t.start, t.end) for t in score.per_token
    ]


def test_window_and_stride_default_to_the_system(word_tokenizer, tiny_recurrent):
    system = tiny_recurrent(word_tokenizer.vocabulary, window=4)
    scorer = Scorer(system, word_tokenizer, Layout())
    assert (scorer.window, scorer.stride) == (4, 2)
    for bad in ({"window": 5}, {"window": 0}, {"stride": 5}, {"stride": 0}):
        with pytest.raises(UserError):
            Scorer(system, word_tokenizer, Layout(), **bad)
    unlimited = tiny_recurrent(word_tokenizer.vocabulary)
    with pytest.raises(UserError, match="needs a window"):
        Scorer(unlimited, word_tokenizer, Layout(), stride=3)


def test_summary_is_token_weighted(word_tokenizer, tiny_recurrent, sentences):
    system = tiny_recurrent(word_tokenizer.vocabulary)
    scores = list(Scorer(system, word_tokenizer, Layout()).score(sentences))
    summary = summarise(scores)
    assert summary.nats_per_token == pytest.approx(
        -sum(score.total for score in scores) / sum(score.tokens for score in scores)
    )
    assert summary.perplexity == pytest.approx(math.exp(summary.nats_per_token))


def test_progress_counts_every_token(word_tokenizer, tiny_recurrent, sentences):
    seen: list[int] = []
    system = tiny_recurrent(word_tokenizer.vocabulary)
    scorer = Scorer(system, word_tokenizer, Layout(), tokens_per_batch=16, progress=seen.append)
    assert sum(score.tokens for score in scorer.score(sentences)) == sum(seen)


def test_memory_does_not_grow_with_the_number_of_texts(word_tokenizer, tiny_recurrent, monkeypatch):
    monkeypatch.setattr("lmlab.scoring.scorer.CHUNK_TEXTS", 64)
    system = tiny_recurrent(word_tokenizer.vocabulary)
    scorer = Scorer(system, word_tokenizer, Layout(), tokens_per_batch=512)

    def peak(count: int) -> int:
        tracemalloc.start()
        texts = (f"the cat sat {number}" for number in range(count))
        assert sum(1 for _ in scorer.score(texts)) == count
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes

    peak(64)
    # Twenty times as many texts; uncollected garbage makes the peak a little uneven.
    assert peak(3000) < 2 * peak(150)


def test_input_prefetch_is_bounded(word_tokenizer, tiny_recurrent):
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "the cat"

    scores = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout()).score(
        endless()
    )
    assert sum(score.tokens for score in itertools.islice(scores, 10)) == 30
    assert taken <= 5000


def test_per_sequence_term_and_interval_are_preserved(word_tokenizer, tiny_recurrent, sentences):
    class Bounded(tiny_recurrent):
        """Scores with a per-sequence term and an interval, as in a latent-variable model."""

        def log_prob(self, batch, *, state=None, generator=None):
            scored = super().log_prob(batch)
            term = -batch.lengths.double()
            totals = scored.per_token.sum(1) + term
            return LogProbs(
                per_token=scored.per_token,
                kind="bound",
                per_sequence=term,
                low=totals - 1,
                high=totals + torch.rand(len(batch), generator=generator),
            )

    scorer = Scorer(
        Bounded(word_tokenizer.vocabulary), word_tokenizer, Layout(), tokens_per_batch=20, seed=4
    )
    scores = list(scorer.score(sentences))
    for score in scores:
        # <s>, the tokens and </s>.
        assert score.per_sequence == -(len(score.text.split()) + 2)
        parts = sum(token.log_prob for token in score.per_token)
        assert score.total == pytest.approx(parts + score.per_sequence, abs=1e-9)
        assert score.low == pytest.approx(score.total - 1, abs=1e-9)
        assert score.high is not None and score.high > score.total
        assert score.kind == "bound"
    assert list(scorer.score(sentences)) == scores, "one seed, one result"
