"""Gap-sentence generation (PEGASUS): generate sentences selected by ROUGE-1, at random or lead.

Zhang et al. 2020, PEGASUS: Pre-training with Extracted Gap-sentences for Abstractive Summarization.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lmlab.core.errors import unknown_name
from lmlab.objectives.denoising_base import (
    CorruptedSource,
    CorruptedTextObjective,
    DenoisingSpecialTokens,
    SentenceSplitter,
)


class GapSelection(Protocol):
    """Selects the gap sentences of a text."""

    def __call__(
        self, sentences: Sequence[np.ndarray], count: int, *, random: np.random.Generator
    ) -> list[int]:
        """Indices of `count` of the sentences, each given by its tokens, ascending."""
        ...


def rouge_1_f1(chosen: Counter[int], rest: Counter[int]) -> float:
    """ROUGE-1 F1 of two bags of tokens: 2PR/(P + R), overlap = Σ_w min of both counts, P = overlap
    / tokens chosen, R = overlap / tokens of the rest (Lin 2004)."""
    overlap = (chosen & rest).total()
    tokens = chosen.total() + rest.total()
    # 2PR/(P + R) simplified.
    return 2 * overlap / tokens if tokens else 0.0


@dataclass(frozen=True)
class IndependentSelection:
    """Independent selection (Ind): the sentences with the highest ROUGE-1 F1 against all others.

    `unique` counts each token of a side once (Uniq), else with its multiplicity (Orig). Ties go to
    the earlier sentence.
    """

    unique: bool = False

    def __call__(
        self, sentences: Sequence[np.ndarray], count: int, *, random: np.random.Generator
    ) -> list[int]:
        bags = [Counter(sentence.tolist()) for sentence in sentences]
        scores = [gap_selection_score([number], bags, self.unique) for number in range(len(bags))]
        best = sorted(range(len(bags)), key=lambda number: -scores[number])
        return sorted(best[:count])


@dataclass(frozen=True)
class SequentialSelection:
    """Sequential selection (Seq): greedily add the sentence that most raises ROUGE-1 F1 of the
    selected sentences against the remaining ones."""

    unique: bool = False

    def __call__(
        self, sentences: Sequence[np.ndarray], count: int, *, random: np.random.Generator
    ) -> list[int]:
        bags = [Counter(sentence.tolist()) for sentence in sentences]
        chosen: list[int] = []
        for _ in range(count):
            remaining = [number for number in range(len(bags)) if number not in chosen]
            chosen.append(
                max(remaining, key=lambda n: gap_selection_score([*chosen, n], bags, self.unique))
            )
        return sorted(chosen)


@dataclass(frozen=True)
class RandomSelection:
    """Random selection: uniform over the sentences."""

    def __call__(
        self, sentences: Sequence[np.ndarray], count: int, *, random: np.random.Generator
    ) -> list[int]:
        return sorted(random.choice(len(sentences), count, replace=False).tolist())


@dataclass(frozen=True)
class LeadSelection:
    """Lead selection: the first sentences of the text."""

    def __call__(
        self, sentences: Sequence[np.ndarray], count: int, *, random: np.random.Generator
    ) -> list[int]:
        return list(range(count))


GAP_SELECTIONS: dict[str, GapSelection] = {
    "ind-orig": IndependentSelection(),
    "ind-uniq": IndependentSelection(unique=True),
    "seq-orig": SequentialSelection(),
    "seq-uniq": SequentialSelection(unique=True),
    "random": RandomSelection(),
    "lead": LeadSelection(),
}


def make_gap_selection(name: str) -> GapSelection:
    """One of the paper's gap-sentence selections, by name."""
    if name not in GAP_SELECTIONS:
        raise unknown_name("choice of gap sentences", name, GAP_SELECTIONS)
    return GAP_SELECTIONS[name]


def gap_selection_score(chosen: Sequence[int], bags: Sequence[Counter[int]], unique: bool) -> float:
    """ROUGE-1 F1 of the selected sentences, joined, against the rest of the text, joined."""
    inside: Counter[int] = Counter()
    outside: Counter[int] = Counter()
    for number, bag in enumerate(bags):
        (inside if number in chosen else outside).update(bag)
    if unique:
        inside, outside = Counter(set(inside)), Counter(set(outside))
    return rouge_1_f1(inside, outside)


class GapSentenceGeneration(CorruptedTextObjective):
    """GSG: -log p(gap sentences | text with one mask token for each).

    A share `rate` of a text's sentences is masked, rounded, at least one and not all; the decoder
    generates them one after another, then the end token. End marks don't count for ROUGE. A text of
    one sentence is cut into chunks of `segment_length` tokens (two halves, if it is no longer than
    that) as pseudo-sentences; a single token is masked.
    """

    def __init__(
        self,
        special_tokens: DenoisingSpecialTokens,
        choice: GapSelection,
        *,
        sentences: SentenceSplitter | None = None,
        rate: float = 0.3,
        segment_length: int = 4,
        full_mask_rate: float = 0.0,
    ) -> None:
        super().__init__(special_tokens, full_mask_rate=full_mask_rate)
        self.choice = choice
        self.sentences: SentenceSplitter = sentences or SentenceSplitter()
        self.rate = rate
        self.chunk_length = segment_length

    def corrupt(
        self, tokens: np.ndarray, random: np.random.Generator
    ) -> tuple[CorruptedSource, np.ndarray]:
        """The source with gap sentences masked, and their positions, in order."""
        parts = self.split_sentences(tokens)
        if len(parts) < 2:
            return self.corrupt_fully(tokens)
        count = min(max(1, int(self.rate * len(parts) + 0.5)), len(parts) - 1)
        words = [self._words(tokens[part]) for part in parts]
        gaps = set(self.choice(words, count, random=random))
        masked = self.fully_masked_source()
        pieces = [
            masked if number in gaps else CorruptedSource(tokens[part], part)
            for number, part in enumerate(parts)
        ]
        source = CorruptedSource(
            np.concatenate([piece.tokens for piece in pieces]),
            np.concatenate([piece.positions for piece in pieces]),
        )
        return source, np.concatenate([parts[number] for number in sorted(gaps)])

    def split_sentences(self, tokens: np.ndarray) -> list[np.ndarray]:
        """Positions of each sentence, or of chunks of `chunk_length` tokens if there is one."""
        parts = self.sentences.split(tokens)
        if len(parts) != 1:
            return parts
        size = min(self.chunk_length, (len(tokens) + 1) // 2)
        return np.split(np.arange(len(tokens)), range(size, len(tokens), size))

    def _words(self, tokens: np.ndarray) -> np.ndarray:
        words: np.ndarray = tokens[~self.sentences.is_end(tokens)]
        return words
