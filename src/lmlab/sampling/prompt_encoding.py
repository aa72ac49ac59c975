"""Prompt encoding: the ids of a prefix, with a note on unknown words, and a source batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of
from lmlab.data.corpus import Layout
from lmlab.data.corpus_encoding import special_tokens_around


@dataclass(frozen=True, kw_only=True)
class EncodedPrefix:
    """The tokens of a prompt's prefix."""

    ids: tuple[int, ...]
    unknown: tuple[str, ...] = ()
    """Words that are <unk> to the model."""

    @property
    def note(self) -> str | None:
        """A note for the user if some words are unknown."""
        if not self.unknown:
            return None
        listed = ", ".join(repr(word) for word in self.unknown)
        return f"the model does not know {listed} and sees <unk> in their place."


def encode_prefix(text: str, tokenizer: Any) -> EncodedPrefix:
    """The ids of a prefix, without the start token, which the system adds itself."""
    ids, spans = tokenizer.encode_with_offsets(text)
    vocabulary = tokenizer.vocabulary
    missing = [text[a:b] for id, (a, b) in zip(ids, spans, strict=True) if id == vocabulary.unknown]
    return EncodedPrefix(ids=tuple(ids), unknown=tuple(dict.fromkeys(missing)))


def encode_source(text: str, tokenizer: Any, system: Any) -> Batch:
    """A source with special tokens as in training, as a batch of one row.

    A UserError if it exceeds the system's maximum length.
    """
    head, tail = special_tokens_around(tokenizer.vocabulary, Layout())
    ids = [*head, *tokenizer.encode(text), *tail]
    system.check_condition_length(len(ids))
    return Batch.collate([ids], system.vocabulary.pad).to(device_of(system))
