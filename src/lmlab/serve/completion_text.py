"""The text of a completion as its tokens arrive: offsets, stop strings, what can be streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lmlab.core.tokenizer_protocol import TokenizerProtocol

CONTEXT_TOKENS = 8
"""Tokens decoded before a new one: spaces and joined bytes depend on its neighbours."""
INCOMPLETE = "\ufffd"
"""What a byte-level tokenizer decodes part of a character to."""


@dataclass(frozen=True, kw_only=True)
class EncodedText:
    """A prompt: its text, its ids, and the character offset at which each token starts.

    A token starts where the one before it ends, so that the tokens joined are the text.
    """

    text: str
    ids: tuple[int, ...]
    offsets: tuple[int, ...]
    start: int | None = None
    """The start token that was given before them, if any."""

    def pieces(self) -> list[str]:
        """The text of each token."""
        ends = (*self.offsets[1:], len(self.text))
        return [self.text[a:b] for a, b in zip(self.offsets, ends, strict=False)]


def encode_text(text: str, tokenizer: TokenizerProtocol) -> EncodedText:
    """A text as the tokens that it is scored in."""
    ids, spans = tokenizer.encode_with_offsets(text)
    starts = [0, *(end for _, end in spans[:-1])][: len(ids)]
    return EncodedText(text=text, ids=tuple(ids), offsets=tuple(starts))


def decode_ids(ids: Sequence[int], tokenizer: TokenizerProtocol) -> EncodedText:
    """Ids as a text; a start token before them is not part of it."""
    start = ids[0] if ids and ids[0] == tokenizer.vocabulary.start else None
    own = list(ids if start is None else ids[1:])
    decoded = tokenizer.decode(own)
    encoded = encode_text(decoded, tokenizer)
    if list(encoded.ids) == own:
        return EncodedText(text=decoded, ids=encoded.ids, offsets=encoded.offsets, start=start)
    text = GrowingText(tokenizer)
    offsets = []
    for id in own:
        offsets.append(len(text.text))
        text.add(id)
    text.flush()
    return EncodedText(text=text.text, ids=tuple(own), offsets=tuple(offsets), start=start)


class GrowingText:
    """Text decoded token by token, after the last tokens of a prompt, in constant time each."""

    def __init__(self, tokenizer: TokenizerProtocol, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._context = list(before[-CONTEXT_TOKENS:])
        self._pending: list[int] = []
        self.text = ""
        """All complete characters so far."""

    def add(self, id: int) -> None:
        """Append a token; the bytes of an unfinished character wait for the next one."""
        self._pending.append(id)
        piece = self._piece()
        if not piece.endswith(INCOMPLETE) or len(self._pending) > CONTEXT_TOKENS:
            self._append(piece)

    def flush(self) -> None:
        """Append an unfinished character as it is."""
        if self._pending:
            self._append(self._piece())

    def _piece(self) -> str:
        decode = self._tokenizer.decode
        before, whole = decode(self._context), decode([*self._context, *self._pending])
        return whole[len(before) :] if whole.startswith(before) else decode(self._pending)

    def _append(self, piece: str) -> None:
        self.text += piece
        self._context = [*self._context, *self._pending][-CONTEXT_TOKENS:]
        self._pending = []


def find_stop(text: str, stops: Sequence[str], start: int = 0) -> int | None:
    """Where the first stop string begins in a text from `start` on; None if there is none."""
    found = [index for stop in stops if (index := text.find(stop, max(0, start))) >= 0]
    return min(found, default=None)


def streamable(text: str, stops: Sequence[str]) -> int:
    """How many characters can be sent: not the end that may be the beginning of a stop string."""
    held = max(
        (
            size
            for stop in stops
            for size in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:size])
        ),
        default=0,
    )
    return len(text) - held


@dataclass
class TokenLogProbs:
    """Tokens in OpenAI's form of `logprobs`: four lists of the same length."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)

    def add(
        self, token: str, log_prob: float | None, top: dict[str, float] | None, offset: int
    ) -> None:
        self.tokens.append(token)
        self.token_logprobs.append(log_prob)
        self.top_logprobs.append(top)
        self.text_offset.append(offset)

    def part(self, first: int, last: int) -> TokenLogProbs:
        """The lists from one token to before another."""
        return TokenLogProbs(
            self.tokens[first:last],
            self.token_logprobs[first:last],
            self.top_logprobs[first:last],
            self.text_offset[first:last],
        )
