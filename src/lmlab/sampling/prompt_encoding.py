"""A prefix as text: its ids, and which of its words the model does not know; and a source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of
from lmlab.data.corpus import Layout
from lmlab.data.corpus_encoding import special_tokens_around


@dataclass(frozen=True, kw_only=True)
class EncodedPrefix:
    """What a system is given to go on from."""

    ids: tuple[int, ...]
    unknown: tuple[str, ...] = ()
    """Words of it that the model sees as <unk>."""

    @property
    def note(self) -> str | None:
        """A sentence for the user where some words are unknown."""
        if not self.unknown:
            return None
        listed = ", ".join(repr(word) for word in self.unknown)
        return f"the model does not know {listed} and sees <unk> in their place."


def encode_prefix(text: str, tokenizer: Any) -> EncodedPrefix:
    """The ids that a prefix is fed as, after the token that the system itself starts from."""
    ids, spans = tokenizer.encode_with_offsets(text)
    vocabulary = tokenizer.vocabulary
    missing = [text[a:b] for id, (a, b) in zip(ids, spans, strict=True) if id == vocabulary.unknown]
    return EncodedPrefix(ids=tuple(ids), unknown=tuple(dict.fromkeys(missing)))


def encode_source(text: str, tokenizer: Any, system: Any) -> Batch:
    """What a text is given, between its symbols as in training, as a batch of one row.

    A UserError where it is longer than the system takes.
    """
    head, tail = special_tokens_around(tokenizer.vocabulary, Layout())
    ids = [*head, *tokenizer.encode(text), *tail]
    system.check_condition_length(len(ids))
    return Batch.collate([ids], system.vocabulary.pad).to(device_of(system))
