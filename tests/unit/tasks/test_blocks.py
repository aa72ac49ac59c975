"""Block boundaries of long texts, and relevance labels of rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from lmlab.core.errors import UserError
from lmlab.core.memrecall_config import MemRecallConfig
from lmlab.tasks.long_context.blocks import block_ends, end_costs
from lmlab.tasks.long_context.relevance_labels import check_relevant, relevant_text_recall
from lmlab.tasks.span_extraction import SpanExtraction
from lmlab.tasks.tagging import Tagging
from lmlab.tasks.task_rows import read_rows


def spans_of(text: str) -> list[tuple[int, int]]:
    """Character spans of words separated by white space."""
    spans, low = [], 0
    for word in text.split():
        low = text.index(word, low)
        spans.append((low, low + len(word)))
        low += len(word)
    return spans


def test_block_end_costs():
    text = "He said , no . \u201cYes.\u201d It was 3.5\nmetres , all"
    # He said ,  no .  "Yes."  It was 3.5(end of a line)  metres ,  all(end of the text)
    assert end_costs(text, spans_of(text)) == [8, 8, 2, 8, 1, 1, 8, 8, 0, 8, 2, 0]
    # Adjacent tokens: a point inside a number ends nothing, one before a Chinese character does.
    assert end_costs("3.5", [(0, 1), (1, 2), (2, 3)]) == [8, 8, 0]
    assert end_costs("好。我", [(0, 1), (1, 2), (2, 3)]) == [8, 1, 0]


def test_blocks_keep_sentences_whole_if_they_fit():
    text = "a b c . d e . f g h i ."
    costs = end_costs(text, spans_of(text))
    assert block_ends(costs, 5) == [4, 7, 12]
    assert block_ends(costs, 7) == [7, 12]
    assert block_ends(costs, 12) == [12]
    assert block_ends([], 5) == []


def test_long_sentence_is_split_at_a_comma():
    text = "a b , c d e f ."
    assert block_ends(end_costs(text, spans_of(text)), 6) == [3, 8]


@pytest.mark.parametrize(
    ("relevant", "message"),
    [
        ('"a"', "got 'a'"),
        ("[3]", "got 3"),
        ('[["a", 1]]', r"got \['a', 1\]"),
        ("[[0, 9]]", r"got \[0, 9\] in 3 characters"),
        ("[[2, 2]]", r"got \[2, 2\] in"),
    ],
)
def test_invalid_relevant_span_error_names_the_line(relevant: str, message: str, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    row = '{"text": "a b", "question": "?", "answer": "b", "relevant": '
    path.write_text(f"{row}[[0, 1]]}}\n{row}{relevant}}}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"line 2: .*{message}"):
        list(read_rows(path, SpanExtraction))


def test_tagging_relevant_spans_refer_to_joined_words():
    row = {"words": ["a", "bc"], "tags": ["O", "O"], "relevant": [[2, 4]]}
    check_relevant(row, Tagging.text(row))


def test_relevant_text_recall():
    """Row 1: one of two relevant spans; row 2: its only one, fully inside one of two read spans."""
    rows = [{"relevant": [[0, 4], [10, 14]]}, {"relevant": [[3, 5]]}, {}, {"relevant": []}]
    read_spans = [((0, 5), (11, 20)), ((0, 9), (12, 13)), (), ()]
    assert relevant_text_recall(rows, read_spans) == {
        "relevant_read": 2 / 3,
        "all_relevant_read": 0.5,
    }
    assert relevant_text_recall([{}], [()]) == {}


def test_inconsistent_memrecall_settings_are_reported():
    with pytest.raises(UserError, match="one number per step"):
        MemRecallConfig(retained_blocks=())
    with pytest.raises(UserError, match=r"t_down 0\.5 is above t_up 0\.2"):
        MemRecallConfig(t_down=0.5)
