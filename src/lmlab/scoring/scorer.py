"""Scoring: the log-probability of texts, in any number and of any length, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.options import takes
from lmlab.core.protocols import Energy, LogProbs, Multilingual, require
from lmlab.core.score import Convention, Score
from lmlab.core.system_protocols import LogProbSystem, SystemInfo
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.batches import group_by_length, pad_rows, preferred_tokens_per_batch
from lmlab.data.corpus import Layout
from lmlab.data.readers import Example
from lmlab.layers.model_placement import precision_of
from lmlab.scoring.masked_text_scoring import score_masked_texts
from lmlab.scoring.score_accumulator import ScoreAccumulator, ScoringRow, TokenChunk, token_chunks
from lmlab.scoring.scoring_methods import is_masked, make_scoring_method, own_convention
from lmlab.scoring.scoring_options import ScoringMethodName, ScoringOptions
from lmlab.scoring.token_streams import (
    CarriedState,
    RollingWindows,
    StateNotCarried,
    TokenStream,
    check_window,
    right_context,
    rolling_windows,
)

CHUNK_TEXTS = 1024
MAX_CHUNK_CHARACTERS = 131_072
"""Characters read ahead to batch texts by length; a longer text is scored by itself."""

ProgressStep = Callable[[int], None]
"""Called after each batch with the number of tokens scored."""


class Scorer:
    """Text scorer of one system: log p(text) in nats, per token, with the convention stated.

    Texts are read ahead in bounded chunks, batched by length, and returned in their order. A text
    that does not fit in a batch is scored exactly by carrying the state from block to block; where
    the system has no state but a maximum input (`window`), by a sliding window of that length. With
    a contiguous layout all texts are one stream: each is followed by the end token, and the state
    is carried from one to the next.

    Texts are not truncated unless `cut` is given, even where the layout truncates in training. With
    `carry` false each text of a contiguous layout starts by itself, after an end token.

    The score is the one the system defines, or that of another `method`
    (`scoring/scoring_methods.py`): one for masked models, with its `head` and the `positions`
    masked together, or one that requires a score kind. Masked models score each text by itself,
    long ones in windows, each of which counts the `stride` tokens in its middle, so that a token
    has context on both sides; tokens outside its window are not seen. `mean` says that the wanted
    figure is the mean over all tokens.
    """

    @takes(ScoringOptions)
    def __init__(
        self,
        system: SystemInfo,
        tokenizer: TokenizerProtocol,
        layout: Layout,
        options: ScoringOptions,
    ) -> None:
        self.method = make_scoring_method(
            options.method, head=options.head, positions=options.positions, mean=options.mean
        )
        self.mean = options.mean
        self._own: LogProbSystem | None = None
        """The system, if its own score is wanted."""
        if self.method is None or not self.method.masked:
            self._own = require(system, LogProbSystem, "scoring")
        if self.method is not None:
            self.method.check(system)
        # Multilingual systems are trained on the sides of pairs too, and score single texts.
        if layout.kind == "pairs" and not isinstance(system, Multilingual):
            raise UserError(
                "this model scores a text given its source, got no sources; give a file of "
                "pairs, or one --source for each --text (in Python sources=)."
            )
        tokens_per_batch, cut = options.tokens_per_batch, options.cut
        if tokens_per_batch is None:
            tokens_per_batch = preferred_tokens_per_batch(system)
        if tokens_per_batch < 1:
            raise UserError(f"tokens_per_batch must be 1 or more, got {tokens_per_batch}.")
        if cut is not None and cut < 2:
            raise UserError(f"a cut must leave at least <s> and one token, got {cut}.")
        self.system = system
        self.tokenizer = tokenizer
        self.layout = layout
        self.window, self.stride = check_window(options.window, options.stride, system.window)
        self.right_context = 0
        """Tokens of a window after those it counts; 0 for left-to-right models."""
        if self.window is not None and self.stride is not None and is_masked(system, self.method):
            self.right_context = right_context(self.window, self.stride)
        self.cut = cut
        isolated = self.method is not None and (self.method.masked or self.method.needs_whole_text)
        self.carried = options.carry and layout.kind == "contiguous" and not isolated
        self.tokens_per_batch = tokens_per_batch
        self.vocabulary = system.vocabulary
        self.seed = options.seed
        self.progress = options.progress or (lambda tokens: None)
        self.convention = self._make_convention()
        """The convention of all scores returned."""

    def score(self, texts: Iterable[str], per_token: bool = True) -> Iterator[Score]:
        """Score each text, in order; `per_token=False` leaves the tokens out.

        Memory is bounded for any number of texts, and without `per_token` for any length of one,
        since only the running sum is kept.
        """
        retain_freed_memory()  # a batch frees the memory the next one needs
        # Fixed seed for reproducibility: systems with estimated scores sample from this generator.
        generator = torch.Generator().manual_seed(self.seed)
        by_token = per_token and (self.method is None or self.method.name != "energy")
        for score in self._score(texts, by_token, generator):
            if self.method is not None:
                self.method.check_kind(score.kind)
            yield score

    def _score(
        self, texts: Iterable[str], per_token: bool, generator: torch.Generator
    ) -> Iterator[Score]:
        if self.carried:
            yield from self._score_contiguous(texts, per_token, generator)
            return
        for chunk in chunk_texts(texts, size=len):
            if self.method is not None and self.method.masked:
                yield from score_masked_texts(self, chunk, per_token=per_token)
            else:
                yield from self._score_chunk(chunk, per_token, generator)

    def score_examples(
        self, examples: Iterable[Example], per_token: bool = True
    ) -> Iterator[Score]:
        """Score the texts of a corpus."""
        return self.score((example.text for example in examples), per_token)

    def score_one(self, text: str) -> Score:
        """The score of a single text, per token."""
        return next(self.score([text]))

    def with_method(self, method: ScoringMethodName | None = None) -> Scorer:
        """The same scorer without state carried between texts, or with another method."""
        return Scorer(
            self.system,
            self.tokenizer,
            self.layout,
            tokens_per_batch=self.tokens_per_batch,
            window=self.window,
            stride=self.stride,
            cut=self.cut,
            carry=False,
            seed=self.seed,
            progress=self.progress,
            method=self.method if method is None else method,
            mean=self.mean,
        )

    def _make_convention(self) -> Convention:
        layout_convention = Convention(
            tokenizer=f"{self.tokenizer.kind}, {self.vocabulary.size} tokens",
            start=self._first == self.vocabulary.start,
            end=self.layout.end,
            unknown=Convention.unknown if self.vocabulary.unknown is not None else "never occur",
            window=self.window,
            stride=self.stride,
            lookahead=self.right_context,
            state_carried=self.carried,
            max_length=self.cut,
            mean=self.mean,
            precision=precision_of(self.system),
        )
        own_score = own_convention(self.system, layout_convention)
        return own_score if self.method is None else self.method.convention(own_score)

    @property
    def _first(self) -> int:
        """The token before the first: <s>; in contiguous text, and where there is no <s>, </s>."""
        start, end = self.vocabulary.start, self.vocabulary.end
        first = end if start is None or self.layout.kind == "contiguous" else start
        assert first is not None, "a vocabulary needs a start or an end token"
        return first

    def _score_chunk(
        self, chunk: Sequence[str], per_token: bool, generator: torch.Generator
    ) -> Iterator[Score]:
        """Score texts independently, in their order."""
        scores: dict[int, Score] = {}
        accumulators: dict[int, ScoreAccumulator] = {}
        for index, text in enumerate(chunk):
            accumulator = ScoreAccumulator(text, self.vocabulary, per_token=per_token)
            if len(text) <= MAX_CHUNK_CHARACTERS or (self.method and self.method.needs_whole_text):
                accumulator.add_tokens(self.predicted(accumulator, per_token))
            if self._is_long(accumulator):
                scores[index] = self._score_long(text, per_token, generator)
            else:
                accumulators[index] = accumulator
        self.score_rows(
            [row for accumulator in accumulators.values() for row in self.rows(accumulator)],
            generator,
        )
        for index in range(len(chunk)):
            yield scores[index] if index in scores else accumulators[index].score(self.convention)

    def _is_long(self, accumulator: ScoreAccumulator) -> bool:
        if self.method is not None and self.method.needs_whole_text:
            return False
        if len(accumulator.text) > MAX_CHUNK_CHARACTERS:
            return True
        return self.window is None and len(accumulator.pending) > self.tokens_per_batch

    def predicted(self, accumulator: ScoreAccumulator, per_token: bool) -> Iterator[TokenChunk]:
        """The predicted tokens of a text, its end token included, chunk by chunk."""
        text, max_tokens, count = accumulator.text, self.cut and self.cut - 1, 0
        for chunk in token_chunks(
            self.tokenizer, text, offsets=per_token or max_tokens is not None
        ):
            count += len(chunk.ids)
            if max_tokens is not None and count >= max_tokens:
                remaining = len(chunk.ids) - (count - max_tokens)
                accumulator.characters = chunk.spans[remaining - 1][1]
                yield TokenChunk(chunk.ids[:remaining], chunk.spans[:remaining])
                return
            yield chunk
        if self.layout.end:
            assert self.vocabulary.end is not None, "a layout with an end needs an end token"
            yield TokenChunk([self.vocabulary.end], [(len(text), len(text))], ending=True)
        elif count == 0:
            raise UserError(
                f"the text {text[:20]!r} has no token and this model predicts no end token, "
                "so there is nothing to score; remove empty texts."
            )

    def rows(self, accumulator: ScoreAccumulator) -> list[ScoringRow]:
        """The sequence of a text as one row, or as sliding windows where it is too long."""
        sequence = [self._first, *accumulator.pending]
        window = self.window or len(sequence)
        windows = rolling_windows(len(sequence), window, self.stride or window, self.right_context)
        if len(windows) > 1 and self.method is not None and self.method.needs_whole_text:
            raise UserError(
                f"the method {self.method.name} takes a whole text of at most {window} "
                f"tokens, and {accumulator.text[:20]!r} … has {len(sequence) - 1}; shorten it."
            )
        return [ScoringRow(accumulator, sequence, *window) for window in windows]

    def score_rows(self, rows: Sequence[ScoringRow], generator: torch.Generator) -> None:
        """Score rows in batches of similar length, then add the results to their texts in order.

        Either all rows have a source or none has.
        """
        values: list[list[float]] = [[] for _ in rows]
        for group in group_by_length([row.positions for row in rows], self.tokens_per_batch):
            sources = [rows[index].source for index in group if rows[index].source]
            with evaluation_mode(self.system):
                batch = pad_rows([rows[index].tokens for index in group], self.system, sources)
                log_probs = self._log_probs(batch, generator)
            per_token = log_probs.per_token.double().cpu().numpy()
            for position, index in enumerate(group):
                row = rows[index]
                # The first position of a row has no log-probability.
                first = row.counted.start - 1
                values[index] = per_token[position, first : first + row.scored].tolist()
                row.accumulator.add_sequence_score(log_probs, position)
            self.progress(sum(rows[index].scored for index in group))
        for row, scored in zip(rows, values, strict=True):
            row.accumulator.add(scored, row.accumulator.kind)

    def _log_probs(self, batch: Batch, generator: torch.Generator) -> LogProbs:
        if self.method is not None and self.method.name == "energy":
            return self.method.energies(require(self.system, Energy, "the method energy"), batch)
        assert self._own is not None, "masked methods score by themselves"
        return self._own.log_prob(batch, generator=generator)

    def _score_long(self, text: str, per_token: bool, generator: torch.Generator) -> Score:
        try:
            return next(self._score_stream([text], per_token, generator))
        except StateNotCarried:
            # Neither a state nor a window: the text is scored in one piece.
            accumulator = ScoreAccumulator(text, self.vocabulary, per_token=per_token)
            accumulator.add_tokens(self.predicted(accumulator, per_token))
            self.score_rows(self.rows(accumulator), generator)
            return accumulator.score(self.convention)

    def _score_contiguous(
        self, texts: Iterable[str], per_token: bool, generator: torch.Generator
    ) -> Iterator[Score]:
        try:
            yield from self._score_stream(texts, per_token, generator)
        except StateNotCarried:
            raise UserError(
                "contiguous text needs a system that carries its state, which this one does "
                "not; give a window to score it by rolling windows."
            ) from None

    def _score_stream(
        self, texts: Iterable[str], per_token: bool, generator: torch.Generator
    ) -> Iterator[Score]:
        """Score texts as one stream, each when its last token is scored."""
        stream = self._stream(generator)
        pending: deque[ScoreAccumulator] = deque()
        for block, last in self._blocks(texts, stream, pending, per_token):
            with evaluation_mode(self.system):
                log_probs: Sequence[float] = stream.feed(block, last=last).tolist()
            self.progress(len(block))
            for accumulator in pending:
                log_probs = accumulator.add(log_probs, stream.kind)
            while pending and pending[0].complete:
                yield pending.popleft().score(self.convention)
        for accumulator in pending:
            yield accumulator.score(self.convention)

    def _stream(self, generator: torch.Generator) -> TokenStream:
        assert self._own is not None, "masked methods score each text by itself"
        if self.window is None:
            # Whole segments, so that a text is divided as if it were scored at once.
            segment_length = self.system.segment_length or 1
            block = max(segment_length, self.tokens_per_batch // segment_length * segment_length)
            return CarriedState(self._own, self._first, block=block, generator=generator)
        assert self.stride is not None
        return RollingWindows(
            self._own,
            self._first,
            window=self.window,
            stride=self.stride,
            ahead=self.right_context,
            tokens_per_batch=self.tokens_per_batch,
            generator=generator,
        )

    def _blocks(
        self,
        texts: Iterable[str],
        stream: TokenStream,
        pending: deque[ScoreAccumulator],
        per_token: bool,
    ) -> Iterator[tuple[list[int], bool]]:
        """The tokens of all texts in blocks of the wanted size, each flagged if it is the last."""
        buffer: list[int] = []
        for text in texts:
            accumulator = ScoreAccumulator(text, self.vocabulary, per_token=per_token)
            pending.append(accumulator)
            for chunk in self.predicted(accumulator, per_token):
                accumulator.add_tokens([chunk])
                buffer += chunk.ids
                # A full block is held back until more tokens arrive, as it may be the last.
                while len(buffer) > stream.wants:
                    block, buffer = buffer[: stream.wants], buffer[stream.wants :]
                    yield block, False
            accumulator.closed = True
        if buffer:
            yield buffer, True


Text = TypeVar("Text")


def chunk_texts(texts: Iterable[Text], size: Callable[[Text], int]) -> Iterator[list[Text]]:
    """Texts in lists of bounded total characters; one beyond the bound comes alone."""
    chunk: list[Text] = []
    characters = 0
    for text in texts:
        more = size(text)
        if chunk and (len(chunk) == CHUNK_TEXTS or characters + more > MAX_CHUNK_CHARACTERS):
            yield chunk
            chunk, characters = [], 0
        chunk.append(text)
        characters += more
    if chunk:
        yield chunk
