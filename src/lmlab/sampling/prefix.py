"""A prefix as text: its ids, and which of its words the model does not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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


def encode_prefix(text: str, tokenizer: Any) -> Prefix:
    """The ids that a prefix is fed as, after the token that the system itself starts from."""
    ids, spans = tokenizer.encode_with_offsets(text)
    vocabulary = tokenizer.vocabulary
    missing = [text[a:b] for id, (a, b) in zip(ids, spans, strict=True) if id == vocabulary.unknown]
    return Prefix(ids=tuple(ids), unknown=tuple(dict.fromkeys(missing)))
