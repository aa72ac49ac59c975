"""Completions: choices that collect the tokens of a row, and their records in OpenAI's form."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch

from lmlab.core.protocols import Decoder
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.sampling.prompt_batches import PredictedToken, PromptRow, decode_prompts
from lmlab.serve.completion_text import (
    EncodedText,
    GrowingText,
    TokenLogProbs,
    find_stop,
    streamable,
)
from lmlab.verbs.language_model import LanguageModel

LOWEST_LOG_PROB = -9999.0
"""What OpenAI's interface has for the log-probability of an impossible token: JSON has no -inf."""
FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class CompletionSettings:
    """How a prompt is continued."""

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    stops: tuple[str, ...] = ()
    echo: bool = False
    logprobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class CompletionChunk:
    """What is new of a choice since its last chunk."""

    index: int
    text: str
    logprobs: TokenLogProbs | None
    finish_reason: FinishReason | None = None


class Choice:
    """One continuation of a prompt, as its tokens arrive.

    The thread of the model calls `receive` and `finish`; `send` gets what is new each time.
    """

    def __init__(
        self,
        index: int,
        prompt: EncodedText,
        settings: CompletionSettings,
        tokenizer: TokenizerProtocol,
        *,
        seed: int,
        send: Callable[[CompletionChunk], None] | None = None,
        done: Callable[[], None] = lambda: None,
    ) -> None:
        self.index, self.prompt, self.settings = index, prompt, settings
        self.logprobs = TokenLogProbs()
        self.finish_reason: FinishReason | None = None
        self.generated = 0
        """Tokens generated, the end token included."""
        self.cancelled = False
        self._tokenizer, self._seed, self._send, self._done = tokenizer, seed, send, done
        self._growing = GrowingText(tokenizer, prompt.ids)
        self._given = prompt.text if settings.echo else ""
        self._stopped_at: int | None = None
        self._sent_characters = self._sent_tokens = self._read = 0
        self._pieces = prompt.pieces()
        if prompt.start is not None and settings.echo:
            self.logprobs.add(tokenizer.token(prompt.start), None, None, 0)

    @property
    def text(self) -> str:
        """The text so far, the prompt before it if it is echoed."""
        return self._given + self._growing.text[: self._stopped_at]

    def row(self) -> PromptRow:
        """The row that is decoded for this choice."""
        settings = self.settings
        return PromptRow(
            ids=self.prompt.ids,
            max_tokens=settings.max_tokens,
            receive=self.receive,
            finish=self.finish,
            temperature=settings.temperature,
            top_p=settings.top_p,
            generator=torch.Generator().manual_seed(self._seed),
            scores_prompt=settings.echo and settings.logprobs is not None,
            alternatives=settings.logprobs or 0,
        )

    def receive(self, token: PredictedToken) -> bool:
        """Take the next token; false where no other is wanted."""
        if self.cancelled:
            return False
        if token.generated:
            self._add_generated(token)
        else:
            self._add_given(token)
        if self.finish_reason is not None:
            return False
        if self._send is not None and token.generated:
            self._send_new(streamable(self.text, self.settings.stops))
        return True

    def finish(self) -> None:
        """The row has ended."""
        if self.finish_reason is None:
            self._growing.flush()
            self._check_stops(0)
        self.finish_reason = self.finish_reason or "length"
        if self._send is not None:
            self._send_new(len(self.text))
        self._done()

    def _add_given(self, token: PredictedToken) -> None:
        if self.settings.echo and self.settings.logprobs is not None:
            self._add_log_prob(token, self._pieces[self._read], self.prompt.offsets[self._read])
        self._read += 1

    def _add_generated(self, token: PredictedToken) -> None:
        self.generated += 1
        before = len(self.text)
        if token.id == self._tokenizer.vocabulary.end:
            self._growing.flush()
            piece, self.finish_reason = self._tokenizer.token(token.id), "stop"
        else:
            self._growing.add(token.id)
            piece = self.text[before:]
        if self.settings.logprobs is not None:
            self._add_log_prob(token, piece, before)
        self._check_stops(before - len(self._given))

    def _check_stops(self, new: int) -> None:
        """Cut the text at a stop string that the last token completed."""
        stops = self.settings.stops
        longest = max(map(len, stops), default=0)
        found = find_stop(self._growing.text, stops, new - longest)
        if found is not None and self._stopped_at is None:
            self._stopped_at, self.finish_reason = found, "stop"
            limit = len(self._given) + found
            kept = sum(1 for offset in self.logprobs.text_offset if offset < limit)
            self.logprobs = self.logprobs.part(0, kept)

    def _add_log_prob(self, token: PredictedToken, piece: str, offset: int) -> None:
        assert token.log_prob is not None
        top: dict[str, float] = {}
        for id, value in (*token.alternatives, (token.id, token.log_prob)):
            top.setdefault(spelling(self._tokenizer, id), finite(value))
        wanted = self.settings.logprobs
        self.logprobs.add(piece, finite(token.log_prob), top if wanted else None, offset)

    def _send_new(self, end: int) -> None:
        """Send the characters up to `end`, with the tokens that begin before it."""
        assert self._send is not None
        finished = self.finish_reason is not None
        end = len(self.text) if finished else end
        if end <= self._sent_characters and not finished:
            return
        offsets = self.logprobs.text_offset
        last = len(offsets) if finished else sum(1 for offset in offsets if offset < end)
        new = self.logprobs.part(self._sent_tokens, last)
        self._send(
            CompletionChunk(
                index=self.index,
                text=self.text[self._sent_characters : end],
                logprobs=None if self.settings.logprobs is None else new,
                finish_reason=self.finish_reason,
            )
        )
        self._sent_characters, self._sent_tokens = max(end, self._sent_characters), last


def completion_kind(model: LanguageModel) -> str | None:
    """The kind of the log-probabilities; None where they are not those of a text from the left."""
    return model.card.kind if model.system.scorer_kind == "left-to-right" else None


def spelling(tokenizer: TokenizerProtocol, id: int) -> str:
    """A token by its text; by its name in the vocabulary where it has none of its own."""
    return tokenizer.decode([id]) or tokenizer.token(id)


def finite(value: float) -> float:
    return max(value, LOWEST_LOG_PROB)


@dataclass(frozen=True)
class Generation:
    """Continues the prompts of choices together."""

    system: Decoder
    joins: bool = True
    repeatable: bool = False
    """Tokens have been handed over, so nothing is done twice."""

    def __call__(self, items: Sequence[Choice], wanted: Callable[[], bool]) -> Sequence[Choice]:
        decode_prompts(self.system, [choice.row() for choice in items])
        return items


@dataclass(frozen=True, kw_only=True)
class CompletionRecord:
    """What all records of a completion have in common."""

    model: str
    kind: str | None
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The record of a completion that is not streamed."""
        made = [
            _choice_record(
                CompletionChunk(
                    index=choice.index,
                    text=choice.text,
                    logprobs=None if choice.settings.logprobs is None else choice.logprobs,
                    finish_reason=choice.finish_reason,
                )
            )
            for choice in choices
        ]
        return self._record(made) | {"usage": usage(choices)}

    def chunk(self, chunk: CompletionChunk) -> dict[str, Any]:
        """A record of a stream."""
        return self._record([_choice_record(chunk)])

    def last(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The record of a stream that has the numbers of tokens."""
        return self._record([]) | {"usage": usage(choices)}

    def _record(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "kind": self.kind,
            "choices": choices,
        }


def _choice_record(chunk: CompletionChunk) -> dict[str, Any]:
    return {
        "index": chunk.index,
        "text": chunk.text,
        "logprobs": None if chunk.logprobs is None else asdict(chunk.logprobs),
        "finish_reason": chunk.finish_reason,
    }


def usage(choices: Sequence[Choice]) -> dict[str, int]:
    """Numbers of tokens; a prompt with several choices counts once."""
    prompts = {id(choice.prompt): len(choice.prompt.ids) for choice in choices}
    prompt, completion = sum(prompts.values()), sum(choice.generated for choice in choices)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
