"""Text blocks (CogLTX): segmentation at natural boundaries, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.task import EncodedExample, special_tokens_of

LINE_END_COST, SENTENCE_END_COST, CLAUSE_END_COST, ANY_END_COST = 0, 1, 2, 8
"""Cost of ending a block at the end of a line, of a sentence, after a comma, elsewhere …"""
BLOCK_COST = 4
"""… and the cost of every block, so that there are few."""
PUNCTUATION_COSTS = dict.fromkeys(".?!。？！", SENTENCE_END_COST) | dict.fromkeys(
    ",;:，；：、", CLAUSE_END_COST
)
CLOSING = "\"'”’)]」』）"
"""Characters that may follow a punctuation mark and still belong to its sentence."""


@dataclass(frozen=True, kw_only=True)
class TextBlock:
    """A segment of a text."""

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Characters [start, end) of the text of each token; (0, 0) for tokens not of the text."""

    @property
    def span(self) -> tuple[int, int]:
        """Characters [start, end) of the text."""
        return self.spans[0][0], self.spans[-1][1]

    def part(self, low: int, high: int) -> TextBlock:
        """Its tokens from `low` to before `high`."""
        return TextBlock(tokens=self.tokens[low:high], spans=self.spans[low:high])

    def without_spans(self) -> TextBlock:
        """The same tokens without spans, so that no answer is taken from them."""
        return replace(self, spans=((0, 0),) * len(self.tokens))


@dataclass(frozen=True, kw_only=True)
class BlockQuery:
    """A query about the blocks of a text."""

    query: TextBlock
    blocks: tuple[TextBlock, ...]
    span: tuple[int, int] | None = None
    """Characters [start, end) of the query, if it is a block of the text itself."""


def end_costs(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The cost of ending a block after each token of a text; 0 after the last.

    A punctuation mark counts if white space, a closing quote or a token without letters and digits
    follows it: 3.5 does not end a sentence.
    """
    costs = []
    for position, (low, high) in enumerate(spans):
        if position + 1 == len(spans):
            costs.append(LINE_END_COST)
            continue
        between = text[high : spans[position + 1][0]]
        cost = PUNCTUATION_COSTS.get(text[low:high].rstrip(CLOSING)[-1:], ANY_END_COST)
        following = text[high : high + 1]
        within_word = cost < ANY_END_COST and following.isascii() and following.isalnum()
        costs.append(LINE_END_COST if "\n" in between else ANY_END_COST if within_word else cost)
    return costs


def block_ends(costs: Sequence[int], max_length: int) -> list[int]:
    """Optimal block boundaries (one past each last token), blocks of at most `max_length` tokens.

        min Σ_blocks (BLOCK_COST + costs[last token])       Ding et al. 2020, as in their code

    best[t] = min_{t - n ≤ s < t} best[s] + BLOCK_COST + costs[t - 1], n = max_length; O(T · n) for
    T tokens. Ties: the segmentation with the longest first blocks.
    """
    best, next_end = [0.0] * (len(costs) + 1), [0] * (len(costs) + 1)
    # From the right, so that ties are resolved in favour of longer first blocks.
    for position in range(len(costs) - 1, -1, -1):
        ends = range(min(position + max_length, len(costs)), position, -1)
        next_end[position] = min(ends, key=lambda end: best[end] + costs[end - 1])
        best[position] = best[next_end[position]] + costs[next_end[position] - 1] + BLOCK_COST
    boundaries, position = [], 0
    while position < len(costs):
        position = next_end[position]
        boundaries.append(position)
    return boundaries


def text_as_block(text: str, tokenizer: Tokenizer) -> TextBlock:
    """A text as one block, however long."""
    ids, spans = tokenizer.encode_with_offsets(text)
    return TextBlock(tokens=tuple(ids), spans=tuple(spans))


def make_blocks(text: str, tokenizer: Tokenizer, max_length: int) -> list[TextBlock]:
    """The text as blocks of at most `max_length` tokens, in order; none if it is empty."""
    full_text = text_as_block(text, tokenizer)
    ends = block_ends(end_costs(text, full_text.spans), max_length)
    return [full_text.part(low, high) for low, high in pairwise([0, *ends])]


def concatenate_blocks(
    query: TextBlock | None, blocks: Sequence[TextBlock], vocabulary: Vocabulary
) -> EncodedExample:
    """`<s> query </s> block </s> block </s> …`, the blocks in the order given; no labels."""
    start, end = special_tokens_of(vocabulary)
    tokens, spans = list(start), [(0, 0)] * len(start)
    for part in blocks if query is None else (query, *blocks):
        tokens += [*part.tokens, *end]
        spans += [*part.spans, *[(0, 0)] * len(end)]
    return EncodedExample(tokens=tokens, labels=[], spans=spans)


def query_length(query: TextBlock | None, vocabulary: Vocabulary) -> int:
    """Tokens of the query, with its special tokens."""
    start, end = special_tokens_of(vocabulary)
    return len(start) if query is None else len(start) + len(query.tokens) + len(end)


def block_length_with_end(block: TextBlock, vocabulary: Vocabulary) -> int:
    """Tokens of a block, with its end token."""
    return len(block.tokens) + (vocabulary.end is not None)
