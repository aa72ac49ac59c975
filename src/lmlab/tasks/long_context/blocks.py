"""Blocks: a text cut into short stretches at its best places, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.task import EncodedExample, special_tokens_of

LINE_END_COST, SENTENCE_END_COST, CLAUSE_END_COST, ANY_END_COST = 0, 1, 2, 8
"""What it costs to end a block at the end of a line, of a sentence, after a comma, elsewhere …"""
BLOCK_COST = 4
"""… and what every block costs by itself, so that there are few."""
PUNCTUATION_COSTS = dict.fromkeys(".?!。？！", SENTENCE_END_COST) | dict.fromkeys(
    ",;:，；：、", CLAUSE_END_COST
)
CLOSING = "\"'”’)]」』）"
"""What may follow a mark and still belongs to its sentence."""


@dataclass(frozen=True, kw_only=True)
class TextBlock:
    """A stretch of a text."""

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Characters [start, end) of the text of each token; (0, 0) where they are none of the text."""

    @property
    def span(self) -> tuple[int, int]:
        """Characters [start, end) of the text."""
        return self.spans[0][0], self.spans[-1][1]

    def part(self, low: int, high: int) -> TextBlock:
        """Its tokens from `low` to before `high`."""
        return TextBlock(tokens=self.tokens[low:high], spans=self.spans[low:high])

    def without_spans(self) -> TextBlock:
        """The same tokens, of which no answer is asked."""
        return replace(self, spans=((0, 0),) * len(self.tokens))


@dataclass(frozen=True, kw_only=True)
class BlockQuery:
    """A query about the blocks of a text."""

    query: TextBlock
    blocks: tuple[TextBlock, ...]
    span: tuple[int, int] | None = None
    """Characters [start, end) of the query, where it is a block of the text itself."""


def end_costs(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """What it costs to end a block after each token of a text; nothing after the last.

    A mark counts where white space or a closing quote follows it, or another token that is none
    of letters and digits: so 3.5 is no end of a sentence.
    """
    costs = []
    for place, (low, high) in enumerate(spans):
        if place + 1 == len(spans):
            costs.append(LINE_END_COST)
            continue
        between = text[high : spans[place + 1][0]]
        marked = PUNCTUATION_COSTS.get(text[low:high].rstrip(CLOSING)[-1:], ANY_END_COST)
        following = text[high : high + 1]
        inside = marked < ANY_END_COST and following.isascii() and following.isalnum()
        costs.append(LINE_END_COST if "\n" in between else ANY_END_COST if inside else marked)
    return costs


def block_ends(costs: Sequence[int], longest: int) -> list[int]:
    """Where each block ends (one past its last token), all blocks of at most `longest` tokens.

        min Σ_blocks (EACH + costs[last token])       Ding et al. 2020, as in their program

    best[t] = min_{t - longest ≤ s < t} best[s] + EACH + costs[t - 1]; O(T · longest) for T tokens.
    Of equally cheap cuts the one with the longest first blocks.
    """
    best, after = [0.0] * (len(costs) + 1), [0] * (len(costs) + 1)
    # From the right, so that ties are settled in favour of what comes first in the text.
    for place in range(len(costs) - 1, -1, -1):
        ends = range(min(place + longest, len(costs)), place, -1)
        after[place] = min(ends, key=lambda end: best[end] + costs[end - 1])
        best[place] = best[after[place]] + costs[after[place] - 1] + BLOCK_COST
    found, place = [], 0
    while place < len(costs):
        place = after[place]
        found.append(place)
    return found


def text_as_block(text: str, tokenizer: Tokenizer) -> TextBlock:
    """A text as one block, however long."""
    ids, spans = tokenizer.encode_with_offsets(text)
    return TextBlock(tokens=tuple(ids), spans=tuple(spans))


def make_blocks(text: str, tokenizer: Tokenizer, longest: int) -> list[TextBlock]:
    """The text as blocks of at most `longest` tokens, in its order; of no tokens, none."""
    whole = text_as_block(text, tokenizer)
    ends = block_ends(end_costs(text, whole.spans), longest)
    return [whole.part(low, high) for low, high in pairwise([0, *ends])]


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
    """Tokens that the query takes, with the symbols around it."""
    start, end = special_tokens_of(vocabulary)
    return len(start) if query is None else len(start) + len(query.tokens) + len(end)


def block_length_with_end(block: TextBlock, vocabulary: Vocabulary) -> int:
    """Tokens that a block takes, with its end symbol."""
    return len(block.tokens) + (vocabulary.end is not None)
