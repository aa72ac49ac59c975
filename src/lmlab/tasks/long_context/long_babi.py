"""Long bAbI: stories with distractor sentences, longer than a window, with supporting facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_integer
from lmlab.data.babi import Babi, Story

Row = dict[str, Any]
BABI_LONG = "babi-long:"
BABI_FILES = {"train": "train", "validation": "valid", "test": "test"}
SPLIT_ROWS = {"train": 4000, "validation": 250, "test": 500}
"""Maximum questions of each split."""
TEXT_WORDS = 300
"""Minimum words of a text, distractors included."""
ANIMALS = {"mice": "mouse", "wolves": "wolf", "cats": "cat", "sheep": "sheep"}
THINGS = {*ANIMALS.values(), "apple", "football", "milk", "cake", "pyjamas"}
QUESTION_WORDS = {"where", "what", "who", "is", "did", "how", "why"}


def long_babi(
    prefix: str, *, as_label: bool, words: int = TEXT_WORDS, seed: int = 0
) -> dict[str, list[Row]]:
    """Rows by split of the files `prefix`_train.txt, `prefix`_valid.txt and `prefix`_test.txt.

    `prefix` may end in `,WORDS`. The answer is a word of a supporting sentence; with `as_label` it
    is a label (for task 15, whose texts name animals in the plural).
    """
    prefix, _, word_count = prefix.partition(",")
    if word_count and parse_integer(word_count) is None:
        raise UserError(f"expected a number of words after the comma, got {word_count!r}.")
    splits: dict[str, list[Row]] = {}
    for number, (split, name) in enumerate(BABI_FILES.items()):
        path = Path(f"{prefix}_{name}.txt")
        if path.exists():
            generator = np.random.default_rng([seed, number])
            stories = list(Babi(path=path).stories())
            indices = generator.permutation(len(stories))[: SPLIT_ROWS[split]]
            rows = long_rows(
                [stories[index] for index in indices],
                sentences_of(stories),
                as_label=as_label,
                words=int(word_count or words),
                generator=generator,
            )
            splits[split] = list(rows)
    if "train" not in splits:
        raise UserError(f"there is no {prefix}_train.txt; give the path up to there, FOLDER/qa2.")
    return splits


def long_rows(
    stories: Sequence[Story],
    pool: Sequence[str],
    *,
    as_label: bool,
    words: int,
    generator: np.random.Generator,
) -> Iterator[Row]:
    """Each story with distractors from `pool` inserted, until the text has `words` words.

    No subject of a distractor is named in the question or is a subject of a supporting sentence, so
    the answer does not change. Distractors may name places, other persons of the story and what
    other animals fear: an animal that none named would give itself away as the answer. A story
    without suitable distractors keeps its length.
    """
    subjects = {sentence: subjects_of(sentence) for sentence in pool}
    for story in stories:
        protected = set.union(
            entities_in_sentence(story.question),
            _queried_persons(story),
            *map(subjects_of, story.supporting_sentences()),
        )
        distractors = [sentence for sentence in pool if not subjects[sentence] & protected]
        yield _row(story, distractors, as_label, words, generator)


def sentences_of(stories: Sequence[Story]) -> list[str]:
    """All distinct sentences, in order of first occurrence."""
    return list(dict.fromkeys(sentence for story in stories for sentence in story.sentences))


def entities_in_sentence(sentence: str) -> set[str]:
    """The entities of a sentence: persons, objects and kinds of animals; no places."""
    entities = set()
    for word in re.findall(r"\w+", sentence):
        lowered = ANIMALS.get(word.lower(), word.lower())
        if lowered in THINGS or (word[0].isupper() and lowered not in QUESTION_WORDS):
            entities.add(lowered)
    return entities


def subjects_of(sentence: str) -> set[str]:
    """The entities that a sentence is about: who fears, not whom; who is a wolf, not the wolf; for
    actions, all entities."""
    before, separator, _ = re.split(r"( are afraid of | is an? |$)", sentence, maxsplit=1)
    return entities_in_sentence(before if separator else sentence)


def _queried_persons(story: Story) -> set[str]:
    """Persons of the story that the question names in lower case (task 15)."""
    persons = set.union(set(), *map(entities_in_sentence, story.sentences))
    return persons & set(re.findall(r"\w+", story.question.lower()))


def _row(
    story: Story, pool: Sequence[str], as_label: bool, words: int, generator: np.random.Generator
) -> Row:
    story_sentences = [(separate_punctuation(s), n in story.supporting) for s, n in
            zip(story.sentences, story.numbers, strict=True)]  # fmt: skip
    missing = words - sum(len(sentence.split()) for sentence, _ in story_sentences)
    distractors: list[str] = []
    while missing > 0 and pool:
        distractors.append(separate_punctuation(pool[int(generator.integers(len(pool)))]))
        missing -= len(distractors[-1].split())
    # Which sentences of the whole are the story's own: they keep their order.
    is_story = np.zeros(len(story_sentences) + len(distractors), dtype=bool)
    is_story[generator.permutation(len(is_story))[: len(story_sentences)]] = True
    story_iterator, distractor_iterator = iter(story_sentences), iter(distractors)
    sentences = [
        next(story_iterator) if from_story else (next(distractor_iterator), False)
        for from_story in is_story
    ]
    text, spans = "", []
    for sentence, supports in sentences:
        low = len(text) + bool(text)
        text = f"{text} {sentence}" if text else sentence
        spans += [[low, len(text)]] if supports else []
    row = {"text": text, "question": separate_punctuation(story.question), "relevant": spans}
    return {**row, **_answer(story, text, spans, as_label=as_label)}


def _answer(story: Story, text: str, spans: Sequence[Sequence[int]], *, as_label: bool) -> Row:
    """The label; or the last position where the answer is a word of a supporting sentence."""
    if as_label:
        return {"label": story.answer}
    for low, high in reversed(spans):
        starts = [m.start() for m in re.finditer(rf"\b{re.escape(story.answer)}\b", text[low:high])]
        if starts:
            return {"answer": story.answer, "start": low + starts[-1]}
    raise UserError(
        f"the answer {story.answer!r} is not in the sentences that support it; use a task with "
        "labels (text classification)."
    )


def separate_punctuation(sentence: str) -> str:
    """The sentence with its final punctuation as a separate word."""
    sentence = sentence.strip()
    return f"{sentence[:-1].rstrip()} {sentence[-1]}" if sentence[-1:] in ".?!" else sentence
