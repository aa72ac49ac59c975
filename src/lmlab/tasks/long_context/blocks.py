"""Blocks: a text cut into short stretches at its best places, by dynamic programming."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.tasks.task import Encoded, ends_of

LINE, SENTENCE, CLAUSE, ANYWHERE = 0, 1, 2, 8
"""What it costs to end a block at the end of a line, of a sentence, after a comma, elsewhere …"""
EACH = 4
"""… and what every block costs by itself, so that there are few."""
MARKS = dict.fromkeys(".?!。？！", SENTENCE) | dict.fromkeys(",;:，；：、", CLAUSE)
CLOSING = "\"'”’)]」』）"
"""What may follow a mark and still belongs to its sentence."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A stretch of a text."""

    tokens: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    """Characters [start, end) of the text of each token; (0, 0) where they are none of the text."""

    @property
    def place(self) -> tuple[int, int]:
        """Characters [start, end) of the text."""
        return self.spans[0][0], self.spans[-1][1]

    def part(self, low: int, high: int) -> Block:
        """Its tokens from `low` to before `high`."""
        return Block(tokens=self.tokens[low:high], spans=self.spans[low:high])

    def blank(self) -> Block:
        """The same tokens, of which no answer is asked."""
        return replace(self, spans=((0, 0),) * len(self.tokens))


def end_costs(text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """What it costs to end a block after each token of a text; nothing after the last.

    A mark counts where white space or a closing quote follows it, or another token that is none
    of letters and digits: so 3.5 is no end of a sentence.
    """
    costs = []
    for place, (low, high) in enumerate(spans):
        if place + 1 == len(spans):
            costs.append(LINE)
            continue
        between = text[high : spans[place + 1][0]]
        marked = MARKS.get(text[low:high].rstrip(CLOSING)[-1:], ANYWHERE)
        following = text[high : high + 1]
        inside = marked < ANYWHERE and following.isascii() and following.isalnum()
        costs.append(LINE if "\n" in between else ANYWHERE if inside else marked)
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
        best[place] = best[after[place]] + costs[after[place] - 1] + EACH
    found, place = [], 0
    while place < len(costs):
        place = after[place]
        found.append(place)
    return found


def whole_text(text: str, tokenizer: Tokenizer) -> Block:
    """A text as one block, however long."""
    ids, spans = tokenizer.encode_with_offsets(text)
    return Block(tokens=tuple(ids), spans=tuple(spans))


def make_blocks(text: str, tokenizer: Tokenizer, longest: int) -> list[Block]:
    """The text as blocks of at most `longest` tokens, in its order; of no tokens, none."""
    whole = whole_text(text, tokenizer)
    ends = block_ends(end_costs(text, whole.spans), longest)
    return [whole.part(low, high) for low, high in pairwise([0, *ends])]


def side_by_side(query: Block | None, blocks: Sequence[Block], vocabulary: Vocabulary) -> Encoded:
    """`<s> query </s> block </s> block </s> …`, the blocks in the order given; no labels."""
    start, end = ends_of(vocabulary)
    tokens, spans = list(start), [(0, 0)] * len(start)
    for part in blocks if query is None else (query, *blocks):
        tokens += [*part.tokens, *end]
        spans += [*part.spans, *[(0, 0)] * len(end)]
    return Encoded(tokens=tokens, labels=[], spans=spans)


def size_of(query: Block | None, vocabulary: Vocabulary) -> int:
    """Tokens that the query takes, with the symbols around it."""
    start, end = ends_of(vocabulary)
    return len(start) if query is None else len(start) + len(query.tokens) + len(end)


def cost_of(block: Block, vocabulary: Vocabulary) -> int:
    """Tokens that a block takes, with its end symbol."""
    return len(block.tokens) + (vocabulary.end is not None)
