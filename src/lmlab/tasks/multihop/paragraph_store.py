"""Paragraphs by entity, stored with a multi-hop run, and the start entities of a question."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.untrusted_input import parse_json, unpack_gzip
from lmlab.tasks.task import Splits

PARAGRAPHS_FILE = "memory/paragraphs.jsonl.gz"
COMMON_SHARE = 0.02
"""Share of training questions that must contain a name for it to count as a common word."""


def shared_paragraphs(splits: Splits) -> dict[str, str]:
    """The paragraphs of all rows; the first, if an entity has several."""
    paragraphs: dict[str, str] = {}
    for rows in splits.values():
        for row in rows:
            for entity, text in row["paragraphs"].items():
                paragraphs.setdefault(entity, text)
    return paragraphs


def paragraph_bytes(paragraphs: Mapping[str, str]) -> bytes:
    """Paragraphs as they are stored in a run."""
    lines = [
        json.dumps({"entity": name, "text": text}, ensure_ascii=False)
        for name, text in paragraphs.items()
    ]
    return gzip.compress("\n".join(lines).encode(), mtime=0)


def load_paragraphs(run: Path) -> dict[str, str]:
    """The paragraphs of a run's folder."""
    try:
        lines = (
            unpack_gzip((run / PARAGRAPHS_FILE).read_bytes(), name=PARAGRAPHS_FILE)
            .decode()
            .splitlines()
        )
        rows = [parse_json(line) for line in lines]
        return {str(row["entity"]): str(row["text"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run / PARAGRAPHS_FILE} is damaged or missing ({error}).") from error


def common_names(rows: Sequence[Mapping[str, Any]], paragraphs: Mapping[str, str]) -> list[str]:
    """Entity names that are common question words ("kind"): frequent, rarely start entities."""
    names = {name.lower() for name in paragraphs}
    mentioned: Counter[str] = Counter()
    as_start: Counter[str] = Counter()
    for row in rows:
        starts = {name.lower() for name in row["start"]}
        for name, _, _ in entities_in_question(str(row["question"]), names, ()):
            (as_start if name in starts else mentioned)[name] += 1
    min_count = max(2, COMMON_SHARE * len(rows))
    return sorted(name for name, n in mentioned.items() if n > max(min_count, as_start[name]))


def entities_in_question(
    question: str, names: Mapping[str, Any] | set[str], common: Sequence[str]
) -> list[tuple[str, int, int]]:
    """Entity mentions of a question, in lower case, with their words [first, last): longest
    matches, no overlaps."""
    words = _words(question)
    taken: set[int] = set()
    mentions: list[tuple[str, int, int]] = []
    for size in range(min(len(words), 8), 0, -1):
        for low in range(len(words) - size + 1):
            name, positions = " ".join(words[low : low + size]), range(low, low + size)
            if name in names and name not in common and not taken.intersection(positions):
                taken.update(positions)
                mentions.append((name, low, low + size))
    return sorted(mentions, key=lambda mention: mention[1])


def start_entities(
    question: str, names: Mapping[str, str], common: Sequence[str]
) -> tuple[str, ...]:
    """Start entities: two joined by "and" or "or", else all that the question names."""
    mentions = entities_in_question(question, names, common)
    words = _words(question)
    for first, second in pairwise(mentions):
        between = set(words[first[2] : second[1]])
        if between & {"and", "or"} and between <= {"and", "or", ","}:
            return names[first[0]], names[second[0]]
    return tuple(dict.fromkeys(names[name] for name, _, _ in mentions))


def _words(question: str) -> list[str]:
    """Lower-case words and commas of a question, without the final punctuation mark."""
    return re.sub(r"(,)", r" \1 ", question.lower().rstrip(" ?!.")).split()
