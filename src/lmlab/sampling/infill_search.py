"""Infilling search: beam search by position for the best fillings of blanks of unknown length.

Plain beam search compares texts of equal length, but with blanks these are at different positions:
one that stays in a blank continues with likely tokens and displaces one that has left it and pays
for the fixed tokens there, the end of the blank (GLM, T5) or the words around it (BART). So here
only texts at the same position compete: those with equally many tokens in a blank, and those that
have just reached its end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from lmlab.core.protocols import InfillDecoder
from lmlab.core.state import State
from lmlab.inference.decoding import GeneratedSequence, next_distribution

FREE_TOKEN = -1
"""Placeholder for an answer in a linearised text, to find the fixed tokens around answers."""


class PartialText(NamedTuple):
    """The tokens generated so far, and their log-probability."""

    tokens: tuple[int, ...]
    log_prob: float


@dataclass(frozen=True, eq=False)
class Frontier:
    """A batch of texts of equal length, and the state after them."""

    texts: list[PartialText]
    state: State

    def select(self, rows: Tensor) -> Frontier:
        return Frontier([self.texts[row] for row in rows.tolist()], self.state.select(rows))

    @property
    def log_probs(self) -> list[float]:
        return [text.log_prob for text in self.texts]


@dataclass(kw_only=True)
class BestTexts:
    """The most probable distinct texts that reached a position, at most `count`."""

    count: int
    kept: list[tuple[PartialText, Frontier, int]] = field(default_factory=list)
    """Best first, each with the location of its state."""

    def wants(self, log_prob: float) -> bool:
        """Whether a text of at most that log-probability may still rank among them."""
        full = len(self.kept) == self.count
        return log_prob > (self.kept[-1][0].log_prob if full else -math.inf)

    def add(self, front: Frontier) -> None:
        known = {text.tokens for text, _, _ in self.kept}
        new = [(text, front, row) for row, text in enumerate(front.texts)]
        self.kept += [entry for entry in new if entry[0].tokens not in known]
        self.kept.sort(key=lambda entry: -entry[0].log_prob)
        del self.kept[self.count :]

    def fronts(self) -> list[Frontier]:
        """The retained texts, grouped by length."""
        rows: dict[int, list[int]] = {}
        fronts = {id(front): front for _, front, _ in self.kept}
        for _, front, row in self.kept:
            rows.setdefault(id(front), []).append(row)
        return [fronts[key].select(torch.tensor(rows[key])) for key in fronts]


@dataclass(frozen=True, kw_only=True)
class InfillSearch:
    """Infilling search: the most probable fillings of one text's blanks, the decoder's first row.

    For each number of tokens in a blank, and at its end, the `width` most probable are retained,
    and at the end of the text the `best`. A text is pruned there, or when it can no longer rank at
    the end of its blank, since log-probabilities only fall: with a `width` as large as the number
    of answers this is exhaustive search. Cost: per number of tokens in a blank one step, and one
    per word from there to the next blank, of at most `width` rows.
    """

    decoder: InfillDecoder
    blanks: int
    """Number of blanks in the text."""
    width: int
    best: int
    max_tokens: int
    """Maximum tokens in all blanks together."""

    def __call__(self) -> list[GeneratedSequence]:
        """The best texts, best first; log-probabilities include the end."""
        end = self.decoder.vocabulary.end
        assert end is not None, "an infill decoder needs an end token"
        first, *others = self.fixed_segments()
        others[-1] = (*others[-1], end)
        fronts, forced = [Frontier([PartialText((), 0.0)], self.decoder.start(1))], len(first)
        fronts = [self._follow(fronts[0], first, BestTexts(count=1))]
        for number, segment in enumerate(others, 1):
            best_texts = BestTexts(count=self.best if number == len(others) else self.width)
            for front in fronts:
                if front.texts:
                    used = len(front.texts[0].tokens) - forced
                    self._fill(front, segment, self.max_tokens - used, best_texts)
            fronts, forced = best_texts.fronts(), forced + len(segment)
        texts = sorted(
            (text for front in fronts for text in front.texts), key=lambda t: -t.log_prob
        )
        return [
            GeneratedSequence(tokens=text.tokens[:-1], log_prob=text.log_prob, finished=True)
            for text in texts
        ]

    def fixed_segments(self) -> list[tuple[int, ...]]:
        """The fixed tokens before the first answer, between answers, and after the last."""
        segments: list[tuple[int, ...]] = [()]
        for token in self.decoder.linearise_fillings(0, [(FREE_TOKEN,)] * self.blanks):
            if token == FREE_TOKEN:
                segments.append(())
            else:
                segments[-1] += (token,)
        return segments

    def _fill(
        self, front: Frontier, segment: Sequence[int], max_tokens: int, best_texts: BestTexts
    ) -> None:
        """Put 0, 1, … `max_tokens` tokens into a blank, each followed by the segment after it."""
        for tokens in range(max_tokens + 1):
            front = self._prune(front, best_texts)
            if not front.texts:
                return
            best_texts.add(self._follow(front, segment, best_texts))
            if tokens < max_tokens:
                front = self._extend(front)

    def _prune(self, front: Frontier, best_texts: BestTexts) -> Frontier:
        """The texts that may still rank among the best at the end of the blank."""
        rows = [row for row, log_prob in enumerate(front.log_probs) if best_texts.wants(log_prob)]
        return front if len(rows) == len(front.texts) else front.select(self._tensor(rows))

    def _extend(self, front: Frontier) -> Frontier:
        """The `width` most probable texts with one more token in the blank."""
        log_probs = next_distribution(self.decoder, front.state).log_probs
        answer_log_probs = log_probs.masked_fill(~self.decoder.answer_tokens, -math.inf).double()
        totals = answer_log_probs + answer_log_probs.new_tensor(front.log_probs)[:, None]
        best = totals.flatten().topk(min(self.width, totals.numel()))
        size, possible = totals.shape[1], best.values > -math.inf
        chosen = best.indices[possible]
        return self._advance(front, chosen // size, chosen % size, best.values[possible])

    def _follow(self, front: Frontier, segment: Sequence[int], best_texts: BestTexts) -> Frontier:
        """The texts followed by the fixed segment, without those that `best_texts` can't rank."""
        for token in segment:
            values = next_distribution(self.decoder, front.state).log_probs[:, token].double()
            values = values + values.new_tensor(front.log_probs)
            rows = [row for row, value in enumerate(values.tolist()) if best_texts.wants(value)]
            if not rows:
                return Frontier([], front.state)
            index = self._tensor(rows)
            front = self._advance(front, index, torch.full_like(index, token), values[index])
        return front

    def _advance(
        self, front: Frontier, rows: Tensor, tokens: Tensor, log_probs: Tensor
    ) -> Frontier:
        """The texts at `rows`, each with one more token and its new log-probability."""
        before, numbers = front.select(rows), zip(tokens.tolist(), log_probs.tolist(), strict=True)
        texts = [
            PartialText((*text.tokens, token), log_prob)
            for text, (token, log_prob) in zip(before.texts, numbers, strict=True)
        ]
        # Nothing follows the end, and not every decoder can continue there.
        ended = bool(len(tokens)) and int(tokens[0]) == self.decoder.vocabulary.end
        return Frontier(
            texts, before.state if ended else self.decoder.advance(before.state, tokens)
        )

    def _tensor(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self.decoder.answer_tokens.device)


def generated_log_probs(decoder: InfillDecoder, rows: Sequence[Sequence[int]]) -> list[float]:
    """The decoder's log-probability of each row, end included, in nats."""
    end = decoder.vocabulary.end
    assert end is not None, "an infill decoder needs an end token"
    rows = [[*row, end] for row in rows]
    state, totals = decoder.start(len(rows)), [0.0] * len(rows)
    active_rows = list(range(len(rows)))
    for step in range(max(map(len, rows))):
        log_probs = next_distribution(decoder, state).log_probs
        for index, row in enumerate(active_rows):
            totals[row] += float(log_probs[index, rows[row][step]])
        continuing = [index for index, row in enumerate(active_rows) if step + 1 < len(rows[row])]
        tokens = torch.tensor([rows[active_rows[index]][step] for index in continuing])
        active_rows = [active_rows[index] for index in continuing]
        if active_rows:
            selected = torch.tensor(continuing, device=log_probs.device)
            state = decoder.advance(state.select(selected), tokens.to(log_probs.device))
    return totals
