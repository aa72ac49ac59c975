"""Word scores sum to the score of the text, for every tokenizer."""

from __future__ import annotations

import csv
import io
import math

import pytest

from lmlab.core.errors import UserError
from lmlab.core.score import Convention, Score, TokenScore
from lmlab.data.corpus import Layout
from lmlab.data.tokenizers import train_tokenizer
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.word_surprisal import CSV_COLUMNS, word_scores, write_surprisal_csv


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
    assert [(w.word, w.log_prob, w.tokens) for w in scores] == [
        ("of", 0.0, 0),
        ("the", -2.0, 1),
        ("dog", -3.0, 1),
    ]


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


def test_truncated_words_have_no_entry(word_tokenizer, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout(), cut=3)
    assert [w.word for w in word_scores(scorer.score_one("the cat sat on"))] == ["the", "cat"]


def test_surprisal_csv_table(word_tokenizer, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout())
    texts = ["the cat", 'a "zebra", sat']
    file = io.StringIO()
    assert write_surprisal_csv(scorer.score(texts), file) == 7
    lines = list(csv.DictReader(io.StringIO(file.getvalue())))
    assert tuple(lines[0]) == CSV_COLUMNS
    assert [(row["line"], row["position"], row["word"]) for row in lines] == [
        ("1", "1", "the"),
        ("1", "2", "cat"),
        ("1", "3", "</s>"),
        ("2", "1", "a"),
        ("2", "2", '"zebra",'),
        ("2", "3", "sat"),
        ("2", "4", "</s>"),
    ]
    assert [row["unknown"] for row in lines] == ["0", "0", "0", "0", "1", "0", "0"]
    for row in lines:
        text = texts[int(row["line"]) - 1]
        assert row["word"] in (text[int(row["start"]) : int(row["end"])], "</s>")
        bits, nats = float(row["surprisal_bits"]), float(row["surprisal_nats"])
        assert bits == pytest.approx(nats / math.log(2), abs=2e-6)
    first = scorer.score_one(texts[0]).per_token[0].log_prob
    assert float(lines[0]["surprisal_nats"]) == pytest.approx(-first, abs=1e-6)


def test_word_scores_require_per_token_scores(word_tokenizer, tiny_recurrent):
    scorer = Scorer(tiny_recurrent(word_tokenizer.vocabulary), word_tokenizer, Layout())
    (score,) = scorer.score(["the cat"], per_token=False)
    with pytest.raises(UserError, match="per_token"):
        word_scores(score)
