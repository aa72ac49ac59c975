"""Word scores sum to the score of the text, for every tokenizer and segmentation."""

from __future__ import annotations

import re

import pytest

from lmlab.core.errors import UserError
from lmlab.core.score import Convention, Score, TokenScore
from lmlab.core.word_scores import spans_by_pattern, spans_by_spaces, spans_of_words, word_scores
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring.scorer import Scorer


def scored(text: str, *tokens: tuple[int, int, float], end: float | None = None) -> Score:
    """A score with tokens at given offsets."""
    parts = [TokenScore(token=text[a:b], start=a, end=b, log_prob=value) for a, b, value in tokens]
    if end is not None:
        offset = len(text)
        parts.append(TokenScore(token="</s>", start=offset, end=offset, log_prob=end))
    return Score(
        text=text,
        total=sum(part.log_prob for part in parts),
        tokens=len(parts),
        characters=len(text),
        utf8_bytes=len(text.encode()),
        kind="exact",
        convention=Convention(tokenizer="by hand", start=True, end=end is not None),
        per_token=tuple(parts),
    )


def test_subword_scores_are_summed():
    score = scored(
        "unhappy cats", (0, 2, -1.0), (2, 7, -2.0), (8, 11, -3.0), (11, 12, -0.5), end=-4.0
    )
    scores = [(w.word, w.start, w.end, w.log_prob, w.tokens) for w in word_scores(score)]
    assert scores == [
        ("unhappy", 0, 7, -3.0, 2),
        ("cats", 8, 12, -3.5, 2),
        ("</s>", 12, 12, -4.0, 1),
    ]


def test_space_belongs_to_the_following_word():
    tokens = [(0, 1, -1.0), (1, 2, -10.0), (2, 3, -100.0), (3, 4, -1000.0)]
    assert [w.log_prob for w in word_scores(scored("a b ", *tokens, end=-0.5))] == [
        -1.0,
        -110.0,
        -1000.5,  # the last space and the end
    ]
    # Where no end is counted the last space has only the last word to belong to.
    assert [w.log_prob for w in word_scores(scored("a b ", *tokens))] == [-1.0, -1110.0]
    # A subword that begins with its space ends in its word.
    assert [w.log_prob for w in word_scores(scored("a b", (0, 1, -1.0), (1, 3, -2.0)))] == [-1, -2]


def test_token_across_two_words_belongs_to_the_second():
    scores = word_scores(scored("of the dog", (0, 6, -2.0), (7, 10, -3.0)))
    assert [(w.word, w.log_prob, w.tokens, w.shared) for w in scores] == [
        ("of", 0.0, 0, True),
        ("the", -2.0, 1, True),
        ("dog", -3.0, 1, False),
    ]


def test_white_space_around_a_token_does_not_count():
    """Whether a tokenizer puts the space at the end of a token or at the beginning."""
    for tokens in ([(0, 4, -1.0), (4, 7, -2.0)], [(0, 3, -1.0), (3, 7, -2.0)]):
        words = scored("the dog", *tokens).words()
        assert [(w.word, w.log_prob, w.shared) for w in words] == [
            ("the", -1.0, False),
            ("dog", -2.0, False),
        ]


def test_chinese_words_share_the_token_that_straddles_them():
    """我爱北京天安门 with the tokens 我 | 爱北 | 京 | 天安门: 爱 and 北京 share one."""
    score = scored(
        "我爱北京天安门", (0, 1, -1.0), (1, 3, -2.0), (3, 4, -4.0), (4, 7, -8.0), end=-16.0
    )
    words = score.words(["我", "爱", "北京", "天安门"])
    assert [(w.word, w.start, w.end, w.log_prob, w.tokens, w.shared) for w in words] == [
        ("我", 0, 1, -1.0, 1, False),
        ("爱", 1, 2, 0.0, 0, True),
        ("北京", 2, 4, -6.0, 2, True),
        ("天安门", 4, 7, -8.0, 1, False),
        ("</s>", 7, 7, -16.0, 1, False),
    ]
    assert [w.word for w in score.words()] == ["我爱北京天安门", "</s>"]
    assert [w.end_token for w in words] == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"\w+", ["I", "don", "'", "t", ",", "well", "-", "known", "."]),
        (r"[\w'-]+", ["I", "don't", ",", "well-known", "."]),
        (r"\S+ \S+", ["I don't,", "well-known."]),
        (r"x*", ["I", "don't,", "well-known."]),  # no match but empty ones
        (r"\s\w+\s?", ["I", "don", "'t,", "well", "-known."]),  # without the space around it
    ],
)
def test_words_by_pattern_cover_all_characters(pattern: str, words: list[str]):
    text = "I don't, well-known."
    spans = spans_by_pattern(text, re.compile(pattern))
    assert [text[start:end] for start, end in spans] == words


def test_given_words_ignore_white_space_alone():
    assert spans_of_words("don't  go", ["do", "n't", "go"]) == [(0, 2), (2, 5), (7, 9)]
    assert spans_of_words("New York is", ["New York", "", "is"]) == [(0, 8), (9, 11)]
    assert spans_of_words("", []) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["我", "北京"], "has '爱北京' at character 2 where the words have '北京'"),
        (["我", "爱"], "has '北京' at character 3 where the words end"),
        (["我爱北京", "。"], "ends where the words have '。'"),
    ],
)
def test_words_that_do_not_spell_the_text_are_refused(words: list[str], message: str):
    with pytest.raises(UserError, match=message):
        spans_of_words("我爱北京", words)


def test_whitespace_only_text_sums_to_its_total():
    assert [w.log_prob for w in word_scores(scored("  ", (0, 1, -1.0), (1, 2, -2.0)))] == [-3.0]
    assert word_scores(scored("", end=-2.0))[0].word == "</s>"


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece"])
def test_word_scores_sum_to_total_and_have_offsets(kind, tiny_recurrent, sentences):
    tokenizer = train_tokenizer(kind, sentences)
    scorer = Scorer(tiny_recurrent(tokenizer.vocabulary), tokenizer, Layout())
    for score in scorer.score([*sentences, " the zebra's  cat\tsat "]):
        scores = word_scores(score)
        assert sum(word.log_prob for word in scores) == pytest.approx(score.total, abs=1e-9)
        assert [word.word for word in scores[:-1]] == score.text.split()
        assert all(score.text[word.start : word.end] == word.word for word in scores[:-1])
        assert sum(word.tokens for word in scores) == score.tokens


SEGMENTATIONS = {
    "spaces": spans_by_spaces,
    "three characters": lambda text: spans_by_pattern(text, re.compile(".{3}")),
    "letters": lambda text: spans_of_words(text, list(text)),
}


@pytest.mark.parametrize("kind", ["word", "char", "bpe", "wordpiece"])
@pytest.mark.parametrize("name", SEGMENTATIONS)
def test_every_segmentation_sums_to_total(kind, name, tiny_recurrent, sentences):
    tokenizer = train_tokenizer(kind, sentences)
    scorer = Scorer(tiny_recurrent(tokenizer.vocabulary), tokenizer, Layout())
    for score in scorer.score([*sentences, "the zebra's  cat\tsat"]):
        words = word_scores(score, SEGMENTATIONS[name](score.text))
        assert sum(word.log_prob for word in words) == pytest.approx(score.total, abs=1e-9)
        assert sum(word.tokens for word in words) == score.tokens
        # A word is shared exactly if a token has a character of it and one outside.
        for word in words:
            inside = {i for i in range(word.start, word.end) if not score.text[i].isspace()}
            tokens = [
                {i for i in range(t.start, t.end) if not score.text[i].isspace()}
                for t in score.per_token
            ]
            assert word.shared == any(t & inside and t - inside for t in tokens)


def test_truncated_words_have_no_entry(word_tokenizer, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout(), cut=3)
    assert [w.word for w in word_scores(scorer.score_one("the cat sat on"))] == ["the", "cat"]


def test_word_scores_require_per_token_scores(word_tokenizer, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout())
    (score,) = scorer.score(["the cat"], per_token=False)
    with pytest.raises(UserError, match="per_token"):
        word_scores(score)
