"""A prefix as text: its ids, and which of its words the model does not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lmlab.data.corpus import Layout


@dataclass(frozen=True, kw_only=True)
class Prefix:
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


def encode_prefix(text: str, tokenizer: Any, layout: Layout) -> Prefix:
    """The ids that a prefix is fed as; a model of contiguous text first reads an end of line.

    Such a model has never seen the start symbol: where a line begins it has seen the end of the one
    before.
    """
    ids, spans = tokenizer.encode_with_offsets(text)
    vocabulary = tokenizer.vocabulary
    missing = [text[a:b] for id, (a, b) in zip(ids, spans, strict=True) if id == vocabulary.unknown]
    opening: tuple[int, ...] = ()
    if layout.kind == "contiguous" and vocabulary.start is not None:
        opening = (vocabulary.end,)
    return Prefix(ids=(*opening, *ids), unknown=tuple(dict.fromkeys(missing)))
