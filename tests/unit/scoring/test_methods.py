"""Texts scored by a method: what the record says, which tokens count, what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.protocols import LogProbs
from lmlab.core.score import summarise
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
def system(words):
    torch.manual_seed(0)
    system = bert.build(bert.SIZES["tiny"], words.vocabulary)
    for parameter in system.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return system.eval()


def table(system, tokenizer, text: str, **options) -> torch.Tensor:
    """The scores of the tokens of one text by themselves."""
    ids = [2, *tokenizer.encode(text), 3]
    batch = Batch.collate([ids], tokenizer.vocabulary.pad)
    return masked_token_scores(system, batch, **options)[0, 1:-1]


@pytest.mark.parametrize("head", ["own", "none"])
@pytest.mark.parametrize("method", ["simple", "raw", "norm", "within-word"])
def test_a_record_says_how_it_was_taken(system, words, method, head):
    scorer = Scorer(system, words, Layout(), method=method, head=head)
    same = {} if method != "within-word" else {"words": torch.arange(8)[None]}
    for text, score in zip(TEXTS, scorer.score(TEXTS), strict=True):
        count = len(text.split())
        given = {key: value[:, : count + 2] for key, value in same.items()}
        expected = table(system, words, text, method=method, head=head, **given)
        values = torch.tensor([token.log_prob for token in score.per_token])
        torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)
        assert [token.token for token in score.per_token] == text.split()
        assert score.tokens == count
        assert score.total == pytest.approx(float(expected.sum()), abs=1e-4)
        assert score.kind == masked_score_kind(method)
        told = score.convention
        assert (told.method, told.head, told.end, told.mean) == (method, head, False, False)
        assert "left to right" not in told.order
    assert score.unknown == 1


def test_totals_do_not_need_the_tokens(system, words):
    scorer = Scorer(system, words, Layout(), method="norm")
    whole = [score.total for score in scorer.score(TEXTS)]
    assert [score.total for score in scorer.score(TEXTS, per_token=False)] == whole


def test_the_default_is_what_the_system_defines(system, words):
    [own] = Scorer(system, words, Layout()).score(TEXTS[:1])
    [norm] = Scorer(system, words, Layout(), method="norm").score(TEXTS[:1])
    assert own.total == pytest.approx(norm.total, abs=1e-5)
    assert (own.kind, own.convention.method) == ("pseudo", "own")
    assert own.tokens == norm.tokens == 6
    assert [token.token for token in own.per_token] == TEXTS[0].split()
    assert replace(own.convention, method="norm") == norm.convention
    order = "each token given all the others of its window"
    assert (own.convention.order, own.convention.end) == (order, False)
    assert own.mean == pytest.approx(norm.mean, abs=1e-5)


def test_an_energy_is_of_a_text_as_a_whole_whose_length_is_given(words):
    """The shares of <s>, </s> and the constant are the text's own, and no token's."""
    torch.manual_seed(0)
    system = ebm.build(ebm.SIZES["tiny"], words.vocabulary).eval()
    [own] = Scorer(system, words, Layout()).score(TEXTS[:1])
    [energy] = Scorer(system, words, Layout(), method="energy").score(TEXTS[:1])
    batch = Batch.collate([[2, *words.encode(TEXTS[0]), 3]], words.vocabulary.pad)
    assert own.total == pytest.approx(-float(system.energy(batch).detach()), abs=1e-5)
    assert own.total == pytest.approx(energy.total, abs=1e-5)
    assert own.tokens == energy.tokens == len(own.per_token) == 6 and not energy.per_token
    shares = sum(token.log_prob for token in own.per_token)
    assert own.per_sequence == pytest.approx(own.total - shares, abs=1e-5)
    assert replace(own.convention, method="energy") == energy.convention
    assert (own.convention.order, own.convention.end) == ("the text as a whole", False)


def test_k_mask_hides_its_positions_together(system, words):
    scorer = Scorer(system, words, Layout(), method="k-mask", positions=(2, 5))
    found = next(scorer.score(TEXTS[:1]))
    scored = torch.tensor([[False, False, True, False, False, True, False, False]])
    expected = table(system, words, TEXTS[0], method="k-mask", scored=scored)
    assert [token.token for token in found.per_token] == ["cat", "the"]
    values = [token.log_prob for token in found.per_token]
    assert values == pytest.approx(expected[[1, 4]].tolist(), abs=1e-5)
    assert (found.tokens, found.convention.positions) == (2, (2, 5))


def test_the_mean_of_000_is_over_all_positions(system, words):
    """score_4mask: some are hidden, all have an inner product, and their mean is taken."""
    options = {"method": "raw-k-mask", "head": "none"}
    scorer = Scorer(system, words, Layout(), positions=(2, 5), mean=True, **options)
    found = next(scorer.score(TEXTS[:1]))
    masked = torch.tensor([[False, False, True, False, False, True, False, False]])
    expected = table(system, words, TEXTS[0], masked=masked, **options)
    assert found.tokens == 6
    assert found.figure == found.mean == pytest.approx(float(expected.mean()), abs=1e-5)
    assert found.convention.mean
    plain = next(Scorer(system, words, Layout(), method="raw", mean=True).score(TEXTS[:1]))
    raw = table(system, words, TEXTS[0], method="raw")
    assert plain.figure == pytest.approx(float(raw.mean()), abs=1e-5)


def test_pieces_of_a_word_are_hidden_from_its_earlier_ones():
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
    found = next(Scorer(system, tokenizer, Layout(), method="within-word").score([text]))
    places = torch.tensor([[-1, *numbers, -2]])
    expected = table(system, tokenizer, text, method="within-word", words=places)
    values = [token.log_prob for token in found.per_token]
    assert values == pytest.approx(expected.tolist(), abs=1e-5)


def test_words_of_words_and_of_characters(words, characters):
    assert words.words("the cat sat") == [0, 1, 2]
    assert characters.words("a cat") == [0, 1, 2, 2, 2]
    assert characters.words("") == []


# <s>, thirteen words and </s>: for each place from 1 on the window [begin, end) that counts it.
BY_TWO = {  # window 6, stride 2: two places stand behind those that count
    **dict.fromkeys((1, 2, 3, 4), (0, 7)),
    **dict.fromkeys((5, 6), (2, 9)),
    **dict.fromkeys((7, 8), (4, 11)),
    **dict.fromkeys((9, 10), (6, 13)),
    **dict.fromkeys((11, 12, 13), (8, 15)),
}
BY_THREE = {  # window 6, stride 3: one place
    **dict.fromkeys((1, 2, 3, 4, 5), (0, 7)),
    **dict.fromkeys((6, 7, 8), (3, 10)),
    **dict.fromkeys((9, 10, 11), (6, 13)),
    **dict.fromkeys((12, 13), (8, 15)),
}
LONG = " ".join(TEXTS)


def in_their_windows(system, tokenizer, table, **options) -> list[float]:
    """Each token's score in the window that the table says, read by itself."""
    ids = [2, *tokenizer.encode(LONG), 3]
    expected = []
    for place, (begin, end) in table.items():
        batch = Batch.collate([ids[begin:end]], tokenizer.vocabulary.pad)
        words = torch.arange(end - begin)[None]
        values = masked_token_scores(system, batch, words=words, **options)
        expected.append(float(values[0, place - begin]))
    return expected


@pytest.mark.parametrize(("stride", "table", "ahead"), [(2, BY_TWO, 2), (3, BY_THREE, 1)])
@pytest.mark.parametrize("method", ["simple", "raw", "norm", "within-word"])
def test_tokens_of_long_texts_stand_in_the_middle_of_their_windows(
    system, words, monkeypatch, method, stride, table, ahead
):
    scorer = Scorer(system, words, Layout(), method=method, window=6, stride=stride)
    found = next(scorer.score([LONG]))
    expected = in_their_windows(system, words, table, method=method)
    assert [t.log_prob for t in found.per_token] == pytest.approx(expected, abs=1e-5)
    told = found.convention
    assert (told.window, told.stride, told.lookahead) == (6, stride, ahead)
    assert found.tokens == len(LONG.split())
    # The windows of a text are many times its tokens where strides are small: some at a time.
    laid_out: list[int] = []
    whole = masked_text_scoring.pad_rows

    def noted(rows, of):
        laid_out.append(len(rows) * max(map(len, rows)))
        return whole(rows, of)

    monkeypatch.setattr(masked_text_scoring, "pad_rows", noted)
    monkeypatch.setattr(masked_text_scoring, "POSITIONS_PER_BATCH", 14)
    bounded = next(scorer.score([LONG]))
    assert [t.log_prob for t in bounded.per_token] == pytest.approx(expected, abs=1e-5)
    assert max(laid_out) <= 14 and len(laid_out) > 1


@pytest.mark.parametrize(("stride", "table"), [(2, BY_TWO), (3, BY_THREE)])
def test_the_own_score_of_a_masked_model_has_the_same_windows(
    system, words, monkeypatch, stride, table
):
    """As one row for each window, and as a stream where a text is too long to be read at once."""
    scorer = Scorer(system, words, Layout(), window=6, stride=stride, tokens_per_batch=14)
    expected = in_their_windows(system, words, table, method="norm")
    rows = next(scorer.score([LONG]))
    assert [t.log_prob for t in rows.per_token] == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr("lmlab.scoring.scorer.MAX_CHUNK_CHARACTERS", 20)
    monkeypatch.setattr("lmlab.scoring.score_accumulator.TOKEN_CHUNK_CHARACTERS", 16)
    stream = next(scorer.score([LONG]))
    assert [t.log_prob for t in stream.per_token] == pytest.approx(expected, abs=1e-5)
    assert stream.convention == rows.convention and stream.convention.lookahead > 0


def test_windows_of_contiguous_text_go_across_its_lines(system, words):
    """One stream, </s> before and after each line, in which the ends of lines count nothing."""
    scorer = Scorer(system, words, Layout(kind="contiguous"), window=6, stride=2)
    found = [token.log_prob for score in scorer.score(TEXTS) for token in score.per_token]
    ids = [3, *(id for text in TEXTS for id in (*words.encode(text), 3))]
    assert len(ids) == 17
    windows = BY_TWO | {11: (8, 15), 12: (8, 15), **dict.fromkeys((13, 14, 15, 16), (10, 17))}
    expected = [
        float(
            masked_token_scores(system, Batch.collate([ids[a:b]], 0), method="norm")[0, place - a]
        )
        for place, (a, b) in windows.items()
        if ids[place] != 3
    ]
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_continuation_is_scored_in_the_middle_of_windows_too(system, words):
    scorer = Scorer(system, words, Layout(), window=6, stride=2)
    [found] = conditional_scores(scorer, [(" ".join(TEXTS[:2]), " " + TEXTS[2])])
    expected = in_their_windows(system, words, BY_TWO, method="norm")[-2:]
    assert [t.log_prob for t in found.per_token] == pytest.approx(expected, abs=1e-5)
    assert found.convention.lookahead == 2


def test_no_pass_reads_more_than_the_budget(system, words):
    read: list[int] = []
    door = system.backbone.stack.blocks[0].feed_forward.register_forward_pre_hook(
        lambda _, given: read.append(given[0][..., 0].numel())
    )
    try:
        scorer = Scorer(system, words, Layout(), method="norm", tokens_per_batch=70)
        [long] = scorer.score([" ".join(["the cat sat on a mat"] * 40)])
    finally:
        door.remove()
    assert long.tokens == 240
    assert max(read) <= 70


def test_mistakes_are_told(system, words, tiny_recurrent):
    def scorer(**options):
        return Scorer(system, words, Layout(), **options)

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
    recurrent = tiny_recurrent(words.vocabulary)
    with pytest.raises(UserError, match=r"norm.*Fill.*bert"):
        Scorer(recurrent, words, Layout(), method="norm")
    with pytest.raises(UserError, match=r"energy needs a system with Energy"):
        Scorer(recurrent, words, Layout(), method="energy")


def test_a_kind_that_is_asked_for_must_be_there(system, words, tiny_recurrent):
    recurrent = tiny_recurrent(words.vocabulary)
    [found] = Scorer(recurrent, words, Layout(), method="exact").score(TEXTS[:1])
    [own] = Scorer(recurrent, words, Layout()).score(TEXTS[:1])
    assert (found.total, found.kind, found.convention.method) == (own.total, "exact", "exact")
    assert found.convention.end and found.convention.order == "left to right"
    with pytest.raises(UserError, match=r"bound.*this one's is exact.*gru-vae"):
        list(Scorer(recurrent, words, Layout(), method="bound").score(TEXTS))
    with pytest.raises(UserError, match=r"exact.*this one's is pseudo"):
        list(Scorer(system, words, Layout(), method="exact").score(TEXTS))


def test_energies_belong_to_the_whole_text(words):
    class Lengths:
        """E = the number of tokens between <s> and </s>."""

        vocabulary = words.vocabulary
        window = 12

        def energy(self, batch):
            return (batch.lengths - 2).double()

        def log_prob(self, batch, **options) -> LogProbs:
            raise AssertionError("not asked for")

    found = list(Scorer(Lengths(), words, Layout(), method="energy").score(TEXTS))
    assert [score.total for score in found] == [-6.0, -5.0, -2.0]
    assert {score.kind for score in found} == {"unnormalised"}
    with pytest.raises(UserError, match="perplexity"):
        _ = summarise(found).perplexity
    with pytest.raises(UserError, match="takes a whole text of at most 12 tokens"):
        list(Scorer(Lengths(), words, Layout(), method="energy").score([" ".join(TEXTS)]))


def test_all_methods_have_an_order_in_words():
    from lmlab.scoring.scoring_methods import METHOD_ORDERS

    assert set(MASKED_METHODS) < set(METHOD_ORDERS)


@pytest.mark.parametrize(("usual", "ours"), [("pll", "norm"), ("pll-within-word", "within-word")])
def test_usual_names_of_pseudo_log_likelihoods_are_methods(usual, ours):
    assert ScoringMethod(name=usual) == ScoringMethod(name=ours)
    assert ScoringMethod(name=usual).masked and ScoringMethod(name=usual).name == ours
    assert usual in METHOD_NAMES
