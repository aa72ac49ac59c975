"""Tables of surprisal by word, of several models."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest

from lmlab.core.errors import UserError
from lmlab.core.score import Convention, Score, ScoreKind, TokenScore
from lmlab.core.word_scores import spans_by_spaces
from lmlab.data.readers import Example
from lmlab.scoring.score_tables import ROW_COLUMNS, ScoredText, ScoreTable
from lmlab.scoring.side_by_side import score_side_by_side
from lmlab.scoring.word_segmentation import ColumnWords, make_segmentation

LN2 = math.log(2)
Tokens = list[tuple[int, int, float]]


def scored(text: str, tokens: Tokens, *, end: float | None = None, kind: ScoreKind = "exact"):
    """A score with tokens at given offsets, in bits."""
    parts = [TokenScore(token=text[a:b], start=a, end=b, log_prob=v * LN2) for a, b, v in tokens]
    if end is not None:
        offset = len(text)
        parts.append(TokenScore(token="</s>", start=offset, end=offset, log_prob=end * LN2))
    return Score(
        text=text,
        total=sum(part.log_prob for part in parts),
        tokens=len(parts),
        characters=len(text),
        utf8_bytes=len(text.encode()),
        kind=kind,
        convention=Convention(tokenizer="by hand", start=True, end=end is not None),
        per_token=tuple(parts),
    )


@pytest.fixture
def table() -> ScoreTable:
    """A word model that does not know "=cats", a subword model, and a masked one without end."""
    text = "the =cats"
    by_word = scored(text, [(0, 3, -1.0), (4, 9, -2.0)], end=-3.0)
    unknown = replace(by_word.per_token[1], unknown=True)
    by_word = replace(by_word, per_token=(by_word.per_token[0], unknown, by_word.per_token[2]))
    scores = {
        "word": by_word,
        "pieces": scored(text, [(0, 5, -4.0), (5, 9, -8.0)], end=-16.0),
        "masked": scored(text, [(0, 3, -1.0), (4, 9, -1.5)], kind="pseudo"),
    }
    row = ScoredText(text=text, line=7, scores=scores, spans=spans_by_spaces(text))
    return ScoreTable(models=tuple(scores), texts=(row,))


def test_rows_by_hand(table: ScoreTable) -> None:
    rows = [
        (row.model, row.kind, row.position, row.word, row.surprisal_bits, row.tokens, row.shared)
        for row in table.rows()
    ]
    assert rows == [
        ("word", "exact", 1, "the", 1.0, 1, False),
        ("word", "exact", 2, "=cats", 2.0, 1, False),
        ("word", "exact", 3, "</s>", 3.0, 1, False),
        ("pieces", "exact", 1, "the", 0.0, 0, True),
        ("pieces", "exact", 2, "=cats", 12.0, 2, True),
        ("pieces", "exact", 3, "</s>", 16.0, 1, False),
        ("masked", "pseudo", 1, "the", 1.0, 1, False),
        ("masked", "pseudo", 2, "=cats", 1.5, 1, False),
    ]
    assert {row.line for row in table.rows()} == {7}
    assert [row.unknown for row in table.rows()] == [False, True, *[False] * 6]


def test_wide_rows_align_words_and_say_what_is_no_surprisal(table: ScoreTable) -> None:
    rows = table.wide_rows()
    assert [(row["word"], row["line"]) for row in rows] == [("the", 7), ("=cats", 7), ("</s>", 7)]
    columns = [[row[name] for row in rows] for name in ("model:word", "pieces")]
    assert columns == [[1.0, 2.0, 3.0], [0.0, 12.0, 16.0]]
    assert [row["masked (pseudo)"] for row in rows] == [1.0, 1.5, None]
    assert [row["flags"] for row in rows] == ["shared:pieces", "unknown:word shared:pieces", ""]


def test_csv_is_neutral_to_spreadsheets_unless_raw(table: ScoreTable) -> None:
    for raw, word in ((False, "'=cats"), (True, "=cats")):
        file = io.StringIO()
        table.write_csv(file, raw=raw)
        rows = list(csv.DictReader(io.StringIO(file.getvalue())))
        assert tuple(rows[0]) == ROW_COLUMNS and len(rows) == 8
        assert rows[1]["word"] == word and rows[1]["unknown"] == "1"
        assert float(rows[1]["surprisal_nats"]) == pytest.approx(2 * LN2, abs=1e-6)
    file = io.StringIO()
    table.write_csv(file, wide=True)
    assert file.getvalue().splitlines()[-1] == "7,3,</s>,9,9,3.000000,16.000000,,"


def test_without_end_no_model_has_its_row(table: ScoreTable) -> None:
    [text] = table.texts
    without = ScoreTable(models=table.models, texts=(replace(text, with_end=False),))
    assert {row.word for row in without.rows()} == {"the", "=cats"}
    assert len(without.wide_rows()) == 2


def test_scores_side_by_side_hold_no_more_than_is_read_ahead() -> None:
    """One scorer reads five texts ahead, the other none: at most five are held."""
    alive = {"read": 0, "scored": 0, "most": 0}

    def texts():
        for number in range(100):
            alive["read"] += 1
            alive["most"] = max(alive["most"], alive["read"] - alive["scored"])
            yield str(number)

    def in_chunks(source):
        chunk = []
        for text in source:
            chunk.append(text)
            if len(chunk) == 5:
                yield from (scored(text, []) for text in chunk)
                chunk = []

    def one_by_one(source):
        return (scored(text, []) for text in source)

    scorers = {"a": in_chunks, "b": one_by_one}
    for number, scores in enumerate(score_side_by_side(scorers, texts())):
        alive["scored"] += 1
        assert [score.text for score in scores.values()] == [str(number)] * 2
    assert alive["scored"] == 100 and alive["most"] <= 5


def test_an_error_names_its_model_and_one_of_the_texts_does_not() -> None:
    def failing(source):
        yield scored(next(source), [])
        raise UserError("too long.")

    def good(source):
        return (scored(text, []) for text in source)

    with pytest.raises(UserError, match=r"^bad: too long"):
        list(score_side_by_side({"good": good, "bad": failing}, iter("abc")))

    def broken():
        yield "a"
        raise UserError("line 2 is no UTF-8.")

    with pytest.raises(UserError, match=r"^line 2"):
        list(score_side_by_side({"good": good, "other": good}, broken()))


def test_given_words_are_aligned_by_line() -> None:
    words = make_segmentation(["a b", "", ["c", "d"]])
    assert words.spans("ab", 1) == [(0, 1), (1, 2)]
    assert words.spans("cd", 3) == [(0, 1), (1, 2)]
    with pytest.raises(UserError, match="words_by ends before line 4"):
        words.spans("e", 4)
    with pytest.raises(UserError, match="words_by, line 1: there are words, but no text"):
        make_segmentation(["a b", "c"]).spans("c", 2)
    with pytest.raises(UserError, match="words_by, line 1: the words do not spell"):
        make_segmentation(["a b", "c"]).spans("ac", 1)


@pytest.mark.parametrize(
    ("words_by", "message"),
    [
        ("regex:(", "is not a regular expression: missing"),
        ("file:nowhere.txt", "there is no file nowhere.txt of words"),
        ("space", "did you mean 'spaces'"),
        ("column", "column is for a FILE"),
        (3, "words_by must be spaces"),
    ],
)
def test_segmentations_that_are_none_are_refused(words_by, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_segmentation(words_by)


def test_column_of_words() -> None:
    column = ColumnWords()
    lines = [Example("我爱\t我 爱", line=1), Example("", line=2), Example("你\t你", line=3)]
    texts = list(column.texts(iter(lines), "f.txt"))
    assert [(text.text, text.line) for text in texts] == [("我爱", 1), ("", 2), ("你", 3)]
    assert column.spans("我爱", 1) == [(0, 1), (1, 2)]
    for bad in ("我爱", "我爱\t", "我\t我\t我"):
        with pytest.raises(UserError, match=r"f\.txt, line 4: expected"):
            list(column.texts(iter([Example(bad, line=4)]), "f.txt"))
