"""Text of any length in bounded memory: by carrying the state on, or by rolling windows.

A stream is fed the tokens of a text block after block and gives their log-probabilities. It says
how many tokens it wants next (`wants`); a smaller block is the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmlab.core.kinds import Kind
from lmlab.core.protocols import LogProb
from lmlab.core.state import State
from lmlab.scoring.batching import batch_of


class Window(NamedTuple):
    """The tokens from `begin` to `end` of a sequence as one row, its last `scored` counted."""

    begin: int
    end: int
    scored: int


def rolling_windows(length: int, window: int, stride: int) -> list[Window]:
    """Windows over a sequence of `length` tokens, of which the first is context alone.

    The first scores `window` tokens, each later one `stride` more (the last what is left), and
    shows `window` tokens of context to the last it scores; so every token but the first `window`
    sees between window - stride + 1 and window tokens.
    """
    windows = [Window(0, min(window + 1, length), min(window, length - 1))]
    while windows[-1].end < length:
        end = min(windows[-1].end + stride, length)
        windows.append(Window(end - window - 1, end, end - windows[-1].end))
    return windows


class Stream(Protocol):
    """Tokens in, their log-probabilities given all before them out."""

    kind: Kind

    @property
    def wants(self) -> int:
        """How many tokens the next block should have, unless the text ends."""
        ...

    def feed(self, tokens: Sequence[int]) -> NDArray[np.float64]: ...


class CannotCarry(Exception):
    """The system gave no state to go on from."""


class Carried:
    """Exact: the state after one block is where the next goes on."""

    kind: Kind = "exact"

    def __init__(
        self,
        system: LogProb,
        first: int,
        *,
        block: int,
        generator: torch.Generator | None = None,
    ) -> None:
        self._system = system
        self._last = first
        self._state: State | None = None
        self._begun = False
        self._generator = generator
        self.wants = block

    def feed(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        if self._begun and self._state is None:
            raise CannotCarry
        # The last token of the block before is the first input: the state has not seen it yet.
        batch = batch_of([[self._last, *tokens]], self._system)
        found = self._system.log_prob(batch, state=self._state, generator=self._generator)
        self._state = None if found.state is None else found.state.detach()
        self._last, self._begun, self.kind = tokens[-1], True, found.kind
        return found.per_token[0].double().cpu().numpy()


class Rolling:
    """By windows: a token sees at most `window` tokens before it, and far context is lost."""

    kind: Kind = "exact"

    def __init__(
        self,
        system: LogProb,
        first: int,
        *,
        window: int,
        stride: int,
        tokens_per_batch: int,
        generator: torch.Generator | None = None,
    ) -> None:
        self._system = system
        self._past = [first]
        self._begun = False
        self._window, self._stride = window, stride
        self._rows = max(1, tokens_per_batch // (window + 1))
        self._generator = generator
        self.wants = window

    def feed(self, tokens: Sequence[int]) -> NDArray[np.float64]:
        sequence = self._past + list(tokens)
        known = len(self._past)
        windows = self._new_windows(known, len(sequence))
        rows = [sequence[window.begin : window.end] for window in windows]
        found = self._system.log_prob(batch_of(rows, self._system), generator=self._generator)
        values = found.per_token.double().cpu().numpy()
        scored = [
            values[row, window.end - window.begin - 1 - window.scored :][: window.scored]
            for row, window in enumerate(windows)
        ]
        self.kind = found.kind
        self._past, self._begun = sequence[-self._window :], True
        self.wants = self._stride * self._rows
        return np.concatenate(scored)

    def _new_windows(self, known: int, length: int) -> list[Window]:
        if not self._begun:
            return rolling_windows(length, self._window, self._stride)
        ends = [*range(known + self._stride, length, self._stride), length]
        begun = [known, *ends[:-1]]
        return [
            Window(end - self._window - 1, end, end - before)
            for before, end in zip(begun, ends, strict=True)
        ]
