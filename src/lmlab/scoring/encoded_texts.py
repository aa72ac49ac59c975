"""Texts as rows of ids with special tokens, character span of each token, batches by length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmlab.core.batch import Batch
from lmlab.core.evaluation_mode import device_of
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.batches import group_by_length
from lmlab.data.corpus import Layout

MIN_TOKENS = 2
"""Tokens of any row: the start and the end."""


@dataclass(frozen=True, kw_only=True)
class FramedText:
    """A text as the model's input: start token, tokens, end token (where there is one)."""

    text: str
    ids: list[int]
    spans: list[tuple[int, int]]
    """The characters [start, end) of each id; empty for special tokens."""
    text_positions: range
    """The positions of the text's own tokens."""
    truncated: bool
    """Whether tokens beyond the model's maximum length were dropped."""


def frame_text(
    tokenizer: TokenizerProtocol, layout: Layout, text: str, max_length: int | None
) -> FramedText:
    """The ids of a text with its special tokens, at most `max_length` of them."""
    vocabulary = tokenizer.vocabulary
    ids, spans = tokenizer.encode_with_offsets(text)
    truncated = max_length is not None and len(ids) > max_length - MIN_TOKENS
    if max_length is not None:
        ids, spans = ids[: max_length - MIN_TOKENS], spans[: max_length - MIN_TOKENS]
    # Contiguous text has no start token: a text is preceded by the end token of the last one.
    first = vocabulary.bos
    if layout.kind == "contiguous" and vocabulary.end is not None:
        first = vocabulary.end
    tail = [] if vocabulary.end is None else [vocabulary.end]
    last = spans[-1][1] if spans else 0
    return FramedText(
        text=text,
        ids=[first, *ids, *tail],
        spans=[(0, 0), *spans, *[(last, last)] * len(tail)],
        text_positions=range(1, 1 + len(ids)),
        truncated=truncated,
    )


def framed_batches(
    rows: Sequence[FramedText], tokens_per_batch: int, system: object, pad: int
) -> Iterator[tuple[list[int], Batch]]:
    """The rows in batches of similar length, each with its row indices."""
    for group in group_by_length([len(row.ids) for row in rows], tokens_per_batch):
        batch = Batch.collate([rows[index].ids for index in group], pad)
        yield group, batch.to(device_of(system))
