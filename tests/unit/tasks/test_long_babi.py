"""Long bAbI stories with distractor sentences, and the built-in long datasets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lmlab.core.errors import UserError
from lmlab.data.babi import Babi
from lmlab.tasks.builtin_datasets import load_builtin_rows
from lmlab.tasks.long_context.long_babi import (
    entities_in_sentence,
    long_babi,
    long_rows,
    sentences_of,
    subjects_of,
)
from lmlab.tasks.long_context.relevance_labels import check_relevant
from lmlab.tasks.span_extraction import SpanExtraction
from lmlab.tasks.task_rows import read_splits

CARRYING = """\
1 Mary went to the garden.
2 Mary got the football there.
3 John went to the office.
4 Mary moved to the hallway.
5 Where is the football? \thallway\t2 4
1 Sandra went to the kitchen.
2 Mary took the milk there.
3 Daniel got the football there.
4 John moved to the bathroom.
5 Daniel went to the garden.
6 Where is the football? \tgarden\t3 5
"""
FEARS = """\
1 Mice are afraid of wolves.
2 Gertrude is a mouse.
3 Cats are afraid of sheep.
4 What is gertrude afraid of?\twolf\t2 1
1 Gertrude is a cat.
2 Mice are afraid of cats.
3 Emily is a sheep.
4 Cats are afraid of mice.
5 What is gertrude afraid of?\tmouse\t1 4
"""


def write_babi(folder: Path, text: str, number: int) -> Path:
    for split in ("train", "valid", "test"):
        (folder / f"qa{number}_{split}.txt").write_text(text, encoding="utf-8")
    return folder / f"qa{number}"


def test_entities_in_sentence():
    assert entities_in_sentence("Mary got the football there.") == {"mary", "football"}
    assert entities_in_sentence("Where is the football?") == {"football"}
    assert entities_in_sentence("Mice are afraid of wolves.") == {"mouse", "wolf"}
    assert entities_in_sentence("John went to the office.") == {"john"}


def test_subjects_of_sentence():
    assert subjects_of("Mice are afraid of wolves.") == {"mouse"}
    assert subjects_of("Gertrude is a mouse.") == {"gertrude"}
    assert subjects_of("Mary got the football there.") == {"mary", "football"}


def test_distractors_do_not_mention_question_entities(tmp_path: Path):
    path = write_babi(tmp_path, CARRYING, 2)
    stories = list(Babi(path=Path(f"{path}_train.txt")).stories())
    pool = sentences_of(stories)
    generator = np.random.default_rng(0)
    [row, _] = long_rows(stories, pool, as_label=False, words=80, generator=generator)
    sentences = [f"{part} ." for part in row["text"].removesuffix(" .").split(" . ")]
    assert 80 <= len(row["text"].split()) < 90
    story = [
        "Mary went to the garden .",
        "Mary got the football there .",
        "John went to the office .",
        "Mary moved to the hallway .",
    ]
    # Distractors name neither Mary nor the football; the story keeps its order.
    harmless = {
        "John went to the office .",
        "Sandra went to the kitchen .",
        "John moved to the bathroom .",
        "Daniel went to the garden .",
    }
    assert set(sentences) - set(story) <= harmless
    remaining = iter(sentences)
    assert all(sentence in remaining for sentence in story)
    assert [row["text"][low:high] for low, high in row["relevant"]] == [story[1], story[3]]
    low = row["start"]
    assert row["text"][low : low + 7] == row["answer"] == "hallway"
    assert row["text"][:low].endswith("Mary moved to the ")
    SpanExtraction.check_row(row)
    check_relevant(row, row["text"])


def test_deduction_stories_become_labelled_rows(tmp_path: Path):
    path = write_babi(tmp_path, FEARS, 15)
    splits = long_babi(f"{path},60", as_label=True)
    for row in splits["test"]:
        assert row["label"] in ("wolf", "mouse")
        assert len(row["relevant"]) == 2
        supporting = {row["text"][low:high] for low, high in row["relevant"]}
        others = [s for s in row["text"].split(" . ") if f"{s} ." not in supporting]
        # Nothing of Gertrude, nor of what animals like her fear; but the one she fears is named.
        expected = {
            "wolf": {"Cats are afraid of sheep", "Emily is a sheep", "Cats are afraid of mice"},
            "mouse": {"Mice are afraid of cats", "Emily is a sheep", "Mice are afraid of wolves"},
        }
        assert {s.removesuffix(" .") for s in others} == expected[row["label"]]
    with pytest.raises(UserError, match="use a task with labels"):
        long_babi(str(path), as_label=False)


def test_babi_long_spec_is_resolved_by_path(tmp_path: Path):
    path = write_babi(tmp_path, CARRYING, 2)
    splits = read_splits(f"babi-long:{path},50", SpanExtraction)
    assert {name: len(rows) for name, rows in splits.items()} == {
        "train": 2,
        "validation": 2,
        "test": 2,
    }
    with pytest.raises(UserError, match=r"no .*qa3_train\.txt"):
        read_splits(f"babi-long:{tmp_path / 'qa3'}", SpanExtraction)
    with pytest.raises(UserError, match="a number of words"):
        read_splits(f"babi-long:{path},many", SpanExtraction)


def test_capitals_long_marks_the_answer_span():
    task, splits = load_builtin_rows("capitals-long")
    assert task == "span" and len(splits["test"]) == 250
    for row in splits["test"][:20]:
        [[low, high]] = row["relevant"]
        country = row["question"].removeprefix("the capital of ")
        assert row["text"][low:high] == f"the capital of {country} is {row['answer']} ."
        assert row["text"][row["start"] :].startswith(f"{row['answer']} .")
        assert row["text"].count(" . ") == 29
