"""Entity linking of texts, streamed: mentions with character spans and their linked entities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from lmlab.core.entity_mentions import NO_ENTITY, MentionLink
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import require
from lmlab.core.retrieval_protocols import Link
from lmlab.core.system import System
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.batches import pad_rows
from lmlab.data.corpus import Layout


@dataclass(frozen=True, kw_only=True)
class LinkedMention:
    """A mention and the entity it is linked to."""

    start: int
    end: int
    """Its characters are [start, end)."""
    words: str
    entity: str | None
    """The entity's name in the run's knowledge; None for NIL."""
    title: str
    description: str
    probability: float
    """Probability of that entity among the mention's candidates."""


@dataclass(frozen=True, kw_only=True)
class LinkedText:
    """A text and its mentions, from left to right; they may overlap."""

    text: str
    mentions: tuple[LinkedMention, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def link_entities(
    system: System, tokenizer: TokenizerProtocol, layout: Layout, texts: Iterable[str]
) -> Iterator[LinkedText]:
    """Link the mentions of each text, in order and in constant memory."""
    linker = require(system, Link, "link")
    for text in texts:
        ids, offsets = tokenizer.encode_with_offsets(text)
        start, end = system.vocabulary.bos, system.vocabulary.end
        tail = [end] if layout.end and end is not None else []
        batch = pad_rows([[start, *ids, *tail]], system)
        system.check_length(batch.tokens.shape[1])
        with evaluation_mode(system):
            links = linker.link(batch)
        mentions = tuple(_mention(text, offsets, link, linker.knowledge) for link in links)
        yield LinkedText(text=text, mentions=mentions)


def _mention(
    text: str, offsets: list[tuple[int, int]], linked: MentionLink, knowledge: Any
) -> LinkedMention:
    # Position 0 is the start token.
    start, end = offsets[linked.first - 1][0], offsets[linked.last - 1][1]
    entity = None if linked.entity == NO_ENTITY else knowledge.entities[linked.entity]
    return LinkedMention(
        start=start,
        end=end,
        words=text[start:end],
        entity=None if entity is None else entity.name,
        title="" if entity is None else entity.title or entity.name,
        description="" if entity is None else entity.description,
        probability=linked.probability,
    )
