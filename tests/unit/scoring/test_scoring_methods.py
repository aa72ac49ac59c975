"""Scoring methods: the recorded convention, which tokens count, which options are rejected."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProbs
from lmlab.core.score import summarise
from lmlab.core.system import System
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring import masked_text_scoring
from lmlab.scoring.conditional import conditional_scores
from lmlab.scoring.pseudo_log_likelihood import (
    MASKED_METHODS,
    masked_score_kind,
    masked_token_scores,
)
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.scoring_methods import METHOD_NAMES, ScoringMethod
from lmlab.zoo import bert, ebm

TEXTS = ["the cat sat on the mat", "a dog saw the mat", "the zebra"]


@pytest.fixture(scope="module")
def system(word_tokenizer):
    torch.manual_seed(0)
    system = bert.build(bert.SIZES["tiny"], word_tokenizer.vocabulary)
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return system.eval()


def token_scores(system, tokenizer, text: str, **options) -> torch.Tensor:
    """Token scores of one text in a batch of its own."""
    ids = [2, *tokenizer.encode(text), 3]
    batch = Batch.collate([ids], tokenizer.vocabulary.pad)
    return masked_token_scores(system, batch, **options)[0, 1:-1]


@pytest.mark.parametrize("head", ["own", "none"])
@pytest.mark.parametrize("method", ["simple", "raw", "norm", "within-word"])
def test_score_record_states_method_and_head(system, word_tokenizer, method, head):
    scorer = Scorer(system, word_tokenizer, Layout(), method=method, head=head)
    same = {} if method != "within-word" else {"words": torch.arange(8)[None]}
    for text, score in zip(TEXTS, scorer.score(TEXTS), strict=True):
        count = len(text.split())
        options = {key: value[:, : count + 2] for key, value in same.items()}
        expected = token_scores(system, word_tokenizer, text, method=method, head=head, **options)
        values = torch.tensor([token.log_prob for token in score.per_token])
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)
        assert [token.token for token in score.per_token] == text.split()
        assert score.tokens == count
        assert score.total == pytest.approx(float(expected.sum()), abs=1e-4)
        assert score.kind == masked_score_kind(method)
        convention = score.convention
        assert (convention.method, convention.head, convention.end, convention.mean) == (
            method,
            head,
            False,
            False,
        )
        assert "left to right" not in convention.order
    assert score.unknown == 1


def test_totals_agree_without_per_token_scores(system, word_tokenizer):
    scorer = Scorer(system, word_tokenizer, Layout(), method="norm")
    whole = [score.total for score in scorer.score(TEXTS)]
    assert [score.total for score in scorer.score(TEXTS, per_token=False)] == whole


def test_default_method_is_the_system_log_prob(system, word_tokenizer):
    [own] = Scorer(system, word_tokenizer, Layout()).score(TEXTS[:1])
    [norm] = Scorer(system, word_tokenizer, Layout(), method="norm").score(TEXTS[:1])
    assert own.total == pytest.approx(norm.total, abs=1e-5)
    assert (own.kind, own.convention.method) == ("pseudo", "own")
    assert own.tokens == norm.tokens == 6
    assert [token.token for token in own.per_token] == TEXTS[0].split()
    assert replace(own.convention, method="norm") == norm.convention
    order = "each token given all the others of its window"
    assert (own.convention.order, own.convention.end) == (order, False)
    assert own.mean == pytest.approx(norm.mean, abs=1e-5)


def test_ebm_score_is_negative_energy_of_whole_text(word_tokenizer):
    """The energies of <s>, </s> and the constant belong to the text, not to a token."""
    torch.manual_seed(0)
    system = ebm.build(ebm.SIZES["tiny"], word_tokenizer.vocabulary).eval()
    [own] = Scorer(system, word_tokenizer, Layout()).score(TEXTS[:1])
    [energy] = Scorer(system, word_tokenizer, Layout(), method="energy").score(TEXTS[:1])
    batch = Batch.collate([[2, *word_tokenizer.encode(TEXTS[0]), 3]], word_tokenizer.vocabulary.pad)
    assert own.total == pytest.approx(-float(system.energy(batch).detach()), abs=1e-5)
    assert own.total == pytest.approx(energy.total, abs=1e-5)
    assert own.tokens == energy.tokens == len(own.per_token) == 6 and not energy.per_token
    shares = sum(token.log_prob for token in own.per_token)
    assert own.per_sequence == pytest.approx(own.total - shares, abs=1e-5)
    assert replace(own.convention, method="energy") == energy.convention
    assert (own.convention.order, own.convention.end) == ("the text as a whole", False)


def test_k_mask_masks_its_positions_jointly(system, word_tokenizer):
    scorer = Scorer(system, word_tokenizer, Layout(), method="k-mask", positions=(2, 5))
    score = next(scorer.score(TEXTS[:1]))
    scored = torch.tensor([[False, False, True, False, False, True, False, False]])
    expected = token_scores(system, word_tokenizer, TEXTS[0], method="k-mask", scored=scored)
    assert [token.token for token in score.per_token] == ["cat", "the"]
    values = [token.log_prob for token in score.per_token]
    assert values == pytest.approx(expected[[1, 4]].tolist(), abs=1e-5)
    assert (score.tokens, score.convention.positions) == (2, (2, 5))


def test_raw_k_mask_mean_is_over_all_positions(system, word_tokenizer):
    """Some positions are masked, all have an inner product, and the mean is over all."""
    options = {"method": "raw-k-mask", "head": "none"}
    scorer = Scorer(system, word_tokenizer, Layout(), positions=(2, 5), mean=True, **options)
    score = next(scorer.score(TEXTS[:1]))
    masked = torch.tensor([[False, False, True, False, False, True, False, False]])
    expected = token_scores(system, word_tokenizer, TEXTS[0], masked=masked, **options)
    assert score.tokens == 6
    assert score.figure == score.mean == pytest.approx(float(expected.mean()), abs=1e-5)
    assert score.convention.mean
    plain = next(Scorer(system, word_tokenizer, Layout(), method="raw", mean=True).score(TEXTS[:1]))
    raw = token_scores(system, word_tokenizer, TEXTS[0], method="raw")
    assert plain.figure == pytest.approx(float(raw.mean()), abs=1e-5)


def test_within_word_masks_later_subwords_of_the_word():
    corpus = ["a b c d e f g", "bag cab fad, a gag", "ab, ab, cd"]
    tokenizer = train_tokenizer("wordpiece", corpus, size=26)
    text = "a baggage, faced cab"
    ids, _ = tokenizer.encode_with_offsets(text)
    numbers = tokenizer.words(text)
    assert len(numbers) == len(ids) > len(text.split()) + 1
    continued = [tokenizer.token(i).startswith("##") for i in ids]
    same = [False, *(a == b for a, b in itertools.pairwise(numbers))]
    assert continued == same
    torch.manual_seed(0)
    system = bert.build(bert.SIZES["tiny"], tokenizer.vocabulary).eval()
    score = next(Scorer(system, tokenizer, Layout(), method="within-word").score([text]))
    word_indices = torch.tensor([[-1, *numbers, -2]])
    expected = token_scores(system, tokenizer, text, method="within-word", words=word_indices)
    values = [token.log_prob for token in score.per_token]
    assert values == pytest.approx(expected.tolist(), abs=1e-5)


def test_word_indices_of_word_and_char_tokenizers(word_tokenizer, char_tokenizer):
    assert word_tokenizer.words("the cat sat") == [0, 1, 2]
    assert char_tokenizer.words("a cat") == [0, 1, 2, 2, 2]
    assert char_tokenizer.words("") == []


# <s>, thirteen words and </s>: for each position from 1 on, the window [begin, end) that scores it.
BY_TWO = {  # window 6, stride 2: two positions of right context
    **dict.fromkeys((1, 2, 3, 4), (0, 7)),
    **dict.fromkeys((5, 6), (2, 9)),
    **dict.fromkeys((7, 8), (4, 11)),
    **dict.fromkeys((9, 10), (6, 13)),
    **dict.fromkeys((11, 12, 13), (8, 15)),
}
BY_THREE = {  # window 6, stride 3: one position
    **dict.fromkeys((1, 2, 3, 4, 5), (0, 7)),
    **dict.fromkeys((6, 7, 8), (3, 10)),
    **dict.fromkeys((9, 10, 11), (6, 13)),
    **dict.fromkeys((12, 13), (8, 15)),
}
LONG = " ".join(TEXTS)


def scores_in_windows(system, tokenizer, windows, **options) -> list[float]:
    """Each token's score in its given window, in a batch of its own."""
    ids = [2, *tokenizer.encode(LONG), 3]
    expected = []
    for position, (begin, end) in windows.items():
        batch = Batch.collate([ids[begin:end]], tokenizer.vocabulary.pad)
        words = torch.arange(end - begin)[None]
        values = masked_token_scores(system, batch, words=words, **options)
        expected.append(float(values[0, position - begin]))
    return expected


@pytest.mark.parametrize(("stride", "windows", "ahead"), [(2, BY_TWO, 2), (3, BY_THREE, 1)])
@pytest.mark.parametrize("method", ["simple", "raw", "norm", "within-word"])
def test_long_text_windows_give_context_on_both_sides(
    system, word_tokenizer, monkeypatch, method, stride, windows, ahead
):
    scorer = Scorer(system, word_tokenizer, Layout(), method=method, window=6, stride=stride)
    score = next(scorer.score([LONG]))
    expected = scores_in_windows(system, word_tokenizer, windows, method=method)
    assert [t.log_prob for t in score.per_token] == pytest.approx(expected, abs=1e-5)
    convention = score.convention
    assert (convention.window, convention.stride, convention.lookahead) == (6, stride, ahead)
    assert score.tokens == len(LONG.split())
    # With small strides the windows hold many times the tokens of the text: some at a time.
    padded_sizes: list[int] = []
    pad_rows = masked_text_scoring.pad_rows

    def record_size(rows, of):
        padded_sizes.append(len(rows) * max(map(len, rows)))
        return pad_rows(rows, of)

    monkeypatch.setattr(masked_text_scoring, "pad_rows", record_size)
    monkeypatch.setattr(masked_text_scoring, "POSITIONS_PER_BATCH", 14)
    bounded = next(scorer.score([LONG]))
    assert [t.log_prob for t in bounded.per_token] == pytest.approx(expected, abs=1e-5)
    assert max(padded_sizes) <= 14 and len(padded_sizes) > 1


@pytest.mark.parametrize(("stride", "windows"), [(2, BY_TWO), (3, BY_THREE)])
def test_default_masked_score_uses_the_same_windows(
    system, word_tokenizer, monkeypatch, stride, windows
):
    """As one row per window, and streamed if a text is too long for one batch."""
    scorer = Scorer(system, word_tokenizer, Layout(), window=6, stride=stride, tokens_per_batch=14)
    expected = scores_in_windows(system, word_tokenizer, windows, method="norm")
    rows = next(scorer.score([LONG]))
    assert [t.log_prob for t in rows.per_token] == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr("lmlab.scoring.scorer.MAX_CHUNK_CHARACTERS", 20)
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", 16)
    stream = next(scorer.score([LONG]))
    assert [t.log_prob for t in stream.per_token] == pytest.approx(expected, abs=1e-5)
    assert stream.convention == rows.convention and stream.convention.lookahead > 0


def test_contiguous_windows_span_line_boundaries(system, word_tokenizer):
    """One stream with </s> before and after each line; end tokens are not scored."""
    scorer = Scorer(system, word_tokenizer, Layout(kind="contiguous"), window=6, stride=2)
    log_probs = [token.log_prob for score in scorer.score(TEXTS) for token in score.per_token]
    ids = [3, *(id for text in TEXTS for id in (*word_tokenizer.encode(text), 3))]
    assert len(ids) == 17
    windows = BY_TWO | {11: (8, 15), 12: (8, 15), **dict.fromkeys((13, 14, 15, 16), (10, 17))}
    expected = [
        float(
            masked_token_scores(system, Batch.collate([ids[a:b]], 0), method="norm")[
                0, position - a
            ]
        )
        for position, (a, b) in windows.items()
        if ids[position] != 3
    ]
    assert log_probs == pytest.approx(expected, abs=1e-5)


def test_continuations_are_scored_with_lookahead_windows(system, word_tokenizer):
    scorer = Scorer(system, word_tokenizer, Layout(), window=6, stride=2)
    [score] = conditional_scores(scorer, [(" ".join(TEXTS[:2]), " " + TEXTS[2])])
    expected = scores_in_windows(system, word_tokenizer, BY_TWO, method="norm")[-2:]
    assert [t.log_prob for t in score.per_token] == pytest.approx(expected, abs=1e-5)
    assert score.convention.lookahead == 2


def test_forward_passes_stay_within_token_budget(system, word_tokenizer):
    pass_sizes: list[int] = []
    hook = system.backbone.stack.blocks[0].feed_forward.register_forward_pre_hook(
        lambda _, given: pass_sizes.append(given[0][..., 0].numel())
    )
    try:
        scorer = Scorer(system, word_tokenizer, Layout(), method="norm", tokens_per_batch=70)
        [long] = scorer.score([" ".join(["the cat sat on a mat"] * 40)])
    finally:
        hook.remove()
    assert long.tokens == 240
    assert max(pass_sizes) <= 70


def test_invalid_method_options_are_reported(system, word_tokenizer, tiny_recurrent):
    def scorer(**options):
        return Scorer(system, word_tokenizer, Layout(), **options)

    for message, options in {
        "did you mean 'norm'": {"method": "norn"},
        "give their positions": {"method": "k-mask"},
        "positions do not apply": {"method": "norm", "positions": (1,)},
        "positions must be 1 or more": {"method": "k-mask", "positions": (0, 1)},
        "there is no head called 'both'": {"method": "norm", "head": "both"},
        "a method for masked models": {"head": "none"},
        "has no head": {"method": "exact", "head": "none"},
    }.items():
        with pytest.raises(UserError, match=message):
            scorer(**options)
    with pytest.raises(UserError, match=r"from 1 to 2 in a text of 2 tokens, got 5"):
        list(scorer(method="k-mask", positions=(1, 5)).score(TEXTS))
    with pytest.raises(UserError, match=r"whole text of at most 4 tokens"):
        list(scorer(method="k-mask", positions=(1, 5), window=4).score(TEXTS))
    recurrent = tiny_recurrent(word_tokenizer.vocabulary)
    with pytest.raises(UserError, match=r"norm.*Fill.*bert"):
        Scorer(recurrent, word_tokenizer, Layout(), method="norm")
    with pytest.raises(UserError, match=r"energy needs a system with Energy"):
        Scorer(recurrent, word_tokenizer, Layout(), method="energy")


def test_requested_score_kind_must_be_available(system, word_tokenizer, tiny_recurrent):
    recurrent = tiny_recurrent(word_tokenizer.vocabulary)
    [score] = Scorer(recurrent, word_tokenizer, Layout(), method="exact").score(TEXTS[:1])
    [own] = Scorer(recurrent, word_tokenizer, Layout()).score(TEXTS[:1])
    assert (score.total, score.kind, score.convention.method) == (own.total, "exact", "exact")
    assert score.convention.end and score.convention.order == "left to right"
    with pytest.raises(UserError, match=r"bound.*this one's is exact.*gru-vae"):
        list(Scorer(recurrent, word_tokenizer, Layout(), method="bound").score(TEXTS))
    with pytest.raises(UserError, match=r"exact.*this one's is pseudo"):
        list(Scorer(system, word_tokenizer, Layout(), method="exact").score(TEXTS))


def test_energy_method_scores_whole_texts_only(word_tokenizer):
    class Lengths(System):
        """E = the number of tokens between <s> and </s>."""

        scorer_kind = "energy"
        vocabulary = word_tokenizer.vocabulary
        window = 12

        def energy(self, batch, blanks=None):
            return (batch.lengths - 2).double()

        def log_prob(self, batch, **options) -> LogProbs:
            raise AssertionError("not asked for")

    scores = list(Scorer(Lengths(), word_tokenizer, Layout(), method="energy").score(TEXTS))
    assert [score.total for score in scores] == [-6.0, -5.0, -2.0]
    assert {score.kind for score in scores} == {"unnormalised"}
    with pytest.raises(UserError, match="perplexity"):
        _ = summarise(scores).perplexity
    with pytest.raises(UserError, match="takes a whole text of at most 12 tokens"):
        list(Scorer(Lengths(), word_tokenizer, Layout(), method="energy").score([" ".join(TEXTS)]))


def test_every_masked_method_has_an_order_description():
    from lmlab.scoring.scoring_methods import METHOD_ORDERS

    assert set(MASKED_METHODS) < set(METHOD_ORDERS)


@pytest.mark.parametrize(("usual", "ours"), [("pll", "norm"), ("pll-within-word", "within-word")])
def test_pll_names_are_aliases_of_methods(usual, ours):
    assert ScoringMethod(name=usual) == ScoringMethod(name=ours)
    assert ScoringMethod(name=usual).masked and ScoringMethod(name=usual).name == ours
    assert usual in METHOD_NAMES
