"""Where a text is cut into blocks, and what a row may say is relevant."""

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
    """White space between words."""
    found, low = [], 0
    for word in text.split():
        low = text.index(word, low)
        found.append((low, low + len(word)))
        low += len(word)
    return found


def test_what_it_costs_to_end_a_block():
    text = "He said , no . \u201cYes.\u201d It was 3.5\nmetres , all"
    # He said ,  no .  "Yes."  It was 3.5(end of a line)  metres ,  all(the last)
    assert end_costs(text, spans_of(text)) == [8, 8, 2, 8, 1, 1, 8, 8, 0, 8, 2, 0]
    # Tokens that touch: a point within a number ends nothing, one before a Chinese letter does.
    assert end_costs("3.5", [(0, 1), (1, 2), (2, 3)]) == [8, 8, 0]
    assert end_costs("好。我", [(0, 1), (1, 2), (2, 3)]) == [8, 1, 0]


def test_sentences_stay_whole_where_they_fit():
    text = "a b c . d e . f g h i ."
    costs = end_costs(text, spans_of(text))
    assert block_ends(costs, 5) == [4, 7, 12]
    assert block_ends(costs, 7) == [7, 12]
    assert block_ends(costs, 12) == [12]
    assert block_ends([], 5) == []


def test_a_long_sentence_is_cut_at_its_comma():
    text = "a b , c d e f ."
    assert block_ends(end_costs(text, spans_of(text)), 6) == [3, 8]


@pytest.mark.parametrize(
    ("relevant", "said"),
    [
        ('"a"', "got 'a'"),
        ("[3]", "got 3"),
        ('[["a", 1]]', r"got \['a', 1\]"),
        ("[[0, 9]]", r"got \[0, 9\] in 3 characters"),
        ("[[2, 2]]", r"got \[2, 2\] in"),
    ],
)
def test_a_bad_relevant_is_told_with_its_line(relevant: str, said: str, tmp_path: Path):
    path = tmp_path / "rows.jsonl"
    row = '{"text": "a b", "question": "?", "answer": "b", "relevant": '
    path.write_text(f"{row}[[0, 1]]}}\n{row}{relevant}}}\n", encoding="utf-8")
    with pytest.raises(UserError, match=f"line 2: .*{said}"):
        list(read_rows(path, SpanExtraction))


def test_relevant_of_tags_is_of_the_words_joined():
    row = {"words": ["a", "bc"], "tags": ["O", "O"], "relevant": [[2, 4]]}
    check_relevant(row, Tagging.text(row))


def test_shares_of_what_was_relevant_and_read():
    """Row 1: one of two places; row 2: its only one, over two stretches of which one has it all."""
    rows = [{"relevant": [[0, 4], [10, 14]]}, {"relevant": [[3, 5]]}, {}, {"relevant": []}]
    seen = [((0, 5), (11, 20)), ((0, 9), (12, 13)), (), ()]
    assert relevant_text_recall(rows, seen) == {"relevant_read": 2 / 3, "all_relevant_read": 0.5}
    assert relevant_text_recall([{}], [()]) == {}


def test_settings_that_do_not_go_together_are_told():
    with pytest.raises(UserError, match="one number per step"):
        MemRecallConfig(retained_blocks=())
    with pytest.raises(UserError, match=r"t_down 0\.5 is above t_up 0\.2"):
        MemRecallConfig(t_down=0.5)
