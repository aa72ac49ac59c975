"""Streaming scores of text of any length in bounded memory: carried state or sliding windows.

A stream takes the tokens of a text block by block and returns their log-probabilities. It says how
many tokens it wants next (`wants`) and the caller flags the last block, which may be smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.core.score import ScoreKind
from lmlab.core.state import State
from lmlab.core.system_protocols import LogProbSystem
from lmlab.data.batches import pad_rows


class ScoringWindow(NamedTuple):
    """The tokens from `begin` to `end` of a sequence as one row, some of which count."""

    begin: int
    end: int
    scored: int
    """Number of consecutive tokens that count."""
    right_context: int = 0
    """Number of tokens after those, as right context."""


def right_context(window: int, stride: int) -> int:
    """Right context of a window: tokens after those it counts, for a bidirectional model.

    The `stride` tokens that a window counts are then in its middle.
    """
    return (window - stride) // 2


def rolling_windows(length: int, window: int, stride: int, ahead: int = 0) -> list[ScoringWindow]:
    """Sliding windows over a sequence of `length` tokens, of which the first is context alone.

    The first has `window` tokens after that one, and each later one ends `stride` tokens further
    on, the last with the sequence. Left to right, the first counts all of its tokens, each later
    one those that it adds; so every token but the first `window` has between window - stride + 1
    and window tokens of context. With `ahead` every window but the last stops counting so many
    tokens before its end, and the next begins there: a token then has at least `ahead` tokens of
    right context, or the end.
    """
    ends = [min(window + 1, length), *range(window + 1 + stride, length, stride)]
    if ends[-1] < length:
        ends.append(length)
    return _windows_ending_at(ends, counted=1, window=window, ahead=ahead, last=True)


def _windows_ending_at(
    ends: Sequence[int], *, counted: int, window: int, ahead: int, last: bool
) -> list[ScoringWindow]:
    """The windows with these ends, where the tokens before `counted` are done.

    The final one counts all that is left where it is the `last` of its text.
    """
    windows = []
    for end in ends:
        stop = end if last and end == ends[-1] else end - ahead
        windows.append(ScoringWindow(max(0, end - window - 1), end, stop - counted, end - stop))
        counted = stop
    return windows


def check_window(
    window: int | None, stride: int | None, max_window: int | None
) -> tuple[int | None, int | None]:
    """Window and stride of scoring; default: the system's own window and half of it."""
    if window is None:
        window = max_window
    if window is None:
        if stride is not None:
            raise UserError("a stride needs a window; give both.")
        return None, None
    if window < 1 or (max_window is not None and window > max_window):
        limit = (
            "" if max_window is None else f" and at most {max_window}, the longest input it takes"
        )
        raise UserError(f"a window must be 1 or more{limit}, got {window}.")
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride <= window:
        raise UserError(f"a stride must be from 1 to the window's {window}, got {stride}.")
    return window, stride


class TokenStream(Protocol):
    """Tokens in, their log-probabilities out, in order; all have theirs after the last block."""

    kind: ScoreKind

    @property
    def wants(self) -> int:
        """Number of tokens of the next block, unless the text ends."""
        ...

    def feed(self, tokens: Sequence[int], *, last: bool) -> NDArray[np.float64]: ...


class StateNotCarried(Exception):
    """The system returned no state to continue from."""


class CarriedState:
    """Exact streaming: the state after one block is carried to the next."""

    kind: ScoreKind = "exact"

    def __init__(
        self,
        system: LogProbSystem,
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

    def feed(self, tokens: Sequence[int], *, last: bool) -> NDArray[np.float64]:
        if self._begun and self._state is None:
            raise StateNotCarried
        # The last token of the previous block is the first input: the state does not include it
        # yet.
        batch = pad_rows([[self._last, *tokens]], self._system)
        log_probs = self._system.log_prob(batch, state=self._state, generator=self._generator)
        self._state = None if log_probs.state is None else log_probs.state.detach()
        self._last, self._begun, self.kind = tokens[-1], True, log_probs.kind
        return log_probs.per_token[0].double().cpu().numpy()


class RollingWindows:
    """Sliding windows: a token has at most `window` tokens of context.

    With `ahead` a token waits for so many tokens of right context, for a bidirectional model.
    """

    kind: ScoreKind = "exact"

    def __init__(
        self,
        system: LogProbSystem,
        first: int,
        *,
        window: int,
        stride: int,
        tokens_per_batch: int,
        ahead: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        self._system = system
        self._past = [first]
        self._waiting = 0
        self._begun = False
        self._window, self._stride, self._ahead = window, stride, ahead
        self._rows = max(1, tokens_per_batch // (window + 1))
        self._generator = generator
        self.wants = window

    def feed(self, tokens: Sequence[int], *, last: bool) -> NDArray[np.float64]:
        sequence = self._past + list(tokens)
        windows = self._new_windows(len(self._past), len(sequence), last=last)
        rows = [sequence[window.begin : window.end] for window in windows]
        log_probs = self._system.log_prob(pad_rows(rows, self._system), generator=self._generator)
        values = log_probs.per_token.double().cpu().numpy()
        scored = []
        for row, window in enumerate(windows):
            stop = window.end - window.begin - 1 - window.right_context
            scored.append(values[row, stop - window.scored : stop])
        self.kind = log_probs.kind
        self._past, self._begun = sequence[-self._window :], True
        self._waiting = windows[-1].right_context
        self.wants = self._stride * self._rows
        return np.concatenate(scored)

    def _new_windows(self, past: int, length: int, *, last: bool) -> list[ScoringWindow]:
        # The first block is one window at most; each later one adds `stride` tokens.
        ends = [*range(past + self._stride, length, self._stride)] if self._begun else []
        return _windows_ending_at(
            [*ends, length],
            counted=past - self._waiting,
            window=self._window,
            ahead=self._ahead,
            last=last,
        )
