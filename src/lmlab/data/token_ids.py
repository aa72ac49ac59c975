"""Validation of token ids in a third-party tokenizer.json or vocab.json, before loading.

The `tokenizers` library lists every id between 0 and the largest one, so a single damaged id would
fill the memory and end the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

SPARE = 10_000
"""Ids that a vocabulary may skip, in addition to as many as it has tokens."""


def check_tokenizer_json(document: Any) -> None:
    """Raise a ValueError if the ids of a tokenizer.json are implausible for its tokens."""
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, got {type(document).__name__}")
    check_ids([*_ids_of_model(document.get("model")), *_added(document.get("added_tokens"))])


def check_ids(ids: Iterable[Any]) -> None:
    """Raise a ValueError if an id is not an integer or far beyond the number of tokens."""
    listed = list(ids)
    most = 2 * len(listed) + SPARE
    for each in listed:
        if type(each) is not int or not 0 <= each < most:
            raise ValueError(f"{str(each)[:40]} can't be the id of one of {len(listed):,} tokens")


def _ids_of_model(model: Any) -> Iterator[Any]:
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        yield from vocabulary.values()
    elif isinstance(vocabulary, list):  # unigram model: the id is the index
        yield from range(len(vocabulary))


def _added(tokens: Any) -> Iterator[Any]:
    if isinstance(tokens, list):
        yield from (each["id"] for each in tokens if isinstance(each, dict) and "id" in each)
