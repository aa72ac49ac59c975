"""Scoring: the log-probability of texts, in any number and of any length, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from lmlab.core.allocator import retain_freed_memory
from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import LogProb, LogProbs, require
from lmlab.core.score import Convention, Score
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.batches import group_by_length, pad_rows, preferred_tokens_per_batch
from lmlab.data.corpus import Layout
from lmlab.data.readers import Example
from lmlab.scoring.masked_text_scoring import score_masked_texts
from lmlab.scoring.score_accumulator import ScoreAccumulator, TokenChunk, token_chunks
from lmlab.scoring.scoring_methods import (
    ScoringMethod,
    is_masked,
    make_scoring_method,
    own_convention,
)
from lmlab.scoring.token_streams import (
    CarriedState,
    RollingWindows,
    StateNotCarried,
    TokenStream,
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

    def __init__(
        self,
        system: Any,
        tokenizer: Any,
        layout: Layout,
        *,
        tokens_per_batch: int | None = None,
        window: int | None = None,
        stride: int | None = None,
        cut: int | None = None,
        carry: bool = True,
        seed: int = 0,
        progress: ProgressStep | None = None,
        method: str | ScoringMethod | None = None,
        head: str = "own",
        positions: Sequence[int] = (),
        mean: bool = False,
    ) -> None:
        self.method = make_scoring_method(method, head=head, positions=positions, mean=mean)
        self.mean = mean
        if self.method is None or not self.method.masked:
            require(system, LogProb, "scoring")
        if self.method is not None:
            self.method.check(system)
        if layout.kind == "pairs":
            raise UserError(
                "this model scores a text given its source, got no sources; give a file of "
                "pairs, or one --source for each --text (in Python sources=)."
            )
        if tokens_per_batch is None:
            tokens_per_batch = preferred_tokens_per_batch(system)
        if tokens_per_batch < 1:
            raise UserError(f"tokens_per_batch must be 1 or more, got {tokens_per_batch}.")
        if cut is not None and cut < 2:
            raise UserError(f"a cut must leave at least <s> and one token, got {cut}.")
        self.system = system
        self.tokenizer = tokenizer
        self.layout = layout
        self.window, self.stride = _check_window(window, stride, getattr(system, "window", None))
        self.right_context = 0
        """Tokens of a window after those it counts; 0 for left-to-right models."""
        if self.window is not None and self.stride is not None and is_masked(system, self.method):
            self.right_context = right_context(self.window, self.stride)
        self.cut = cut
        alone = self.method is not None and (self.method.masked or self.method.needs_whole_text)
        self.carried = carry and layout.kind == "contiguous" and not alone
        self.tokens_per_batch = tokens_per_batch
        self.vocabulary: Vocabulary = system.vocabulary
        self.seed = seed
        self.progress = progress or (lambda tokens: None)
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

    def with_method(self, method: str | None = None) -> Scorer:
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
        found = Convention(
            tokenizer=f"{self.tokenizer.kind}, {self.vocabulary.size} tokens",
            start=self._first == self.vocabulary.start,
            end=self.layout.end,
            window=self.window,
            stride=self.stride,
            lookahead=self.right_context,
            state_carried=self.carried,
            max_length=self.cut,
            mean=self.mean,
        )
        own = own_convention(self.system, found)
        return own if self.method is None else self.method.convention(own)

    @property
    def _first(self) -> int:
        """The token before the first: <s>; in contiguous text, and where there is no <s>, </s>."""
        start, end = self.vocabulary.start, self.vocabulary.end
        first = end if start is None or self.layout.kind == "contiguous" else start
        assert first is not None, "a vocabulary needs a start or an end symbol"
        return first

    def _score_chunk(
        self, chunk: Sequence[str], per_token: bool, generator: torch.Generator
    ) -> Iterator[Score]:
        """Score texts independently, in their order."""
        scores: dict[int, Score] = {}
        tallies: dict[int, ScoreAccumulator] = {}
        for place, text in enumerate(chunk):
            tally = ScoreAccumulator(text, self.vocabulary, per_token=per_token)
            if len(text) <= MAX_CHUNK_CHARACTERS or (self.method and self.method.needs_whole_text):
                tally.add_tokens(self.predicted(tally, per_token))
            if self._is_long(tally):
                scores[place] = self._score_long(text, per_token, generator)
            else:
                tallies[place] = tally
        self.score_rows([r for tally in tallies.values() for r in self.rows(tally)], generator)
        for place in range(len(chunk)):
            yield scores[place] if place in scores else tallies[place].score(self.convention)

    def _is_long(self, tally: ScoreAccumulator) -> bool:
        if self.method is not None and self.method.needs_whole_text:
            return False
        if len(tally.text) > MAX_CHUNK_CHARACTERS:
            return True
        return self.window is None and len(tally.pending) > self.tokens_per_batch

    def predicted(self, tally: ScoreAccumulator, per_token: bool) -> Iterator[TokenChunk]:
        """The predicted tokens of a text, its end token included, chunk by chunk."""
        text, left, count = tally.text, self.cut and self.cut - 1, 0
        for piece in token_chunks(self.tokenizer, text, offsets=per_token or left is not None):
            count += len(piece.ids)
            if left is not None and count >= left:
                kept = len(piece.ids) - (count - left)
                tally.characters = piece.spans[kept - 1][1]
                yield TokenChunk(piece.ids[:kept], piece.spans[:kept])
                return
            yield piece
        if self.layout.end:
            assert self.vocabulary.end is not None, "a layout with an end needs an end symbol"
            yield TokenChunk([self.vocabulary.end], [(len(text), len(text))], ending=True)
        elif count == 0:
            raise UserError(
                f"the text {text[:20]!r} has no token and this model predicts no end token, "
                "so there is nothing to score; remove empty texts."
            )

    def rows(self, tally: ScoreAccumulator) -> list[ScoringRow]:
        """The sequence of a text as one row, or as sliding windows where it is too long."""
        sequence = [self._first, *tally.pending]
        window = self.window or len(sequence)
        found = rolling_windows(len(sequence), window, self.stride or window, self.right_context)
        if len(found) > 1 and self.method is not None and self.method.needs_whole_text:
            raise UserError(
                f"the method {self.method.name} takes a whole text of at most {window} "
                f"tokens, and {tally.text[:20]!r} … has {len(sequence) - 1}; shorten it."
            )
        return [ScoringRow(tally, sequence, *window) for window in found]

    def score_rows(self, rows: Sequence[ScoringRow], generator: torch.Generator) -> None:
        """Score rows in batches of similar length, then add the results to their texts in order.

        Either all rows have a source or none has.
        """
        values: list[list[float]] = [[] for _ in rows]
        for group in group_by_length([row.positions for row in rows], self.tokens_per_batch):
            sources = [rows[index].source for index in group if rows[index].source]
            with evaluation_mode(self.system):
                batch = pad_rows([rows[index].tokens for index in group], self.system, sources)
                found = self._ask(batch, generator)
            per_token = found.per_token.double().cpu().numpy()
            for place, index in enumerate(group):
                row = rows[index]
                # The first position of a row has no log-probability.
                first = row.counted.start - 1
                values[index] = per_token[place, first : first + row.scored].tolist()
                row.accumulator.add_sequence_score(found, place)
            self.progress(sum(rows[index].scored for index in group))
        for row, scored in zip(rows, values, strict=True):
            row.accumulator.add(scored, row.accumulator.kind)

    def _ask(self, batch: Batch, generator: torch.Generator) -> LogProbs:
        if self.method is not None and self.method.name == "energy":
            return self.method.energies(self.system, batch)
        found: LogProbs = self.system.log_prob(batch, generator=generator)
        return found

    def _score_long(self, text: str, per_token: bool, generator: torch.Generator) -> Score:
        try:
            return next(self._score_stream([text], per_token, generator))
        except StateNotCarried:
            # Neither a state nor a window: the text is scored in one piece.
            tally = ScoreAccumulator(text, self.vocabulary, per_token=per_token)
            tally.add_tokens(self.predicted(tally, per_token))
            self.score_rows(self.rows(tally), generator)
            return tally.score(self.convention)

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
        under_way: deque[ScoreAccumulator] = deque()
        for block, last in self._blocks(texts, stream, under_way, per_token):
            with evaluation_mode(self.system):
                log_probs: Sequence[float] = stream.feed(block, last=last).tolist()
            self.progress(len(block))
            for tally in under_way:
                log_probs = tally.add(log_probs, stream.kind)
            while under_way and under_way[0].complete:
                yield under_way.popleft().score(self.convention)
        for tally in under_way:
            yield tally.score(self.convention)

    def _stream(self, generator: torch.Generator) -> TokenStream:
        if self.window is None:
            # Whole segments, so that a text is divided as if it were scored at once.
            stretch = getattr(self.system, "segment_length", None) or 1
            block = max(stretch, self.tokens_per_batch // stretch * stretch)
            return CarriedState(self.system, self._first, block=block, generator=generator)
        assert self.stride is not None
        return RollingWindows(
            self.system,
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
        under_way: deque[ScoreAccumulator],
        per_token: bool,
    ) -> Iterator[tuple[list[int], bool]]:
        """The tokens of all texts in blocks of the wanted size, each flagged if it is the last."""
        buffer: list[int] = []
        for text in texts:
            tally = ScoreAccumulator(text, self.vocabulary, per_token=per_token)
            under_way.append(tally)
            for piece in self.predicted(tally, per_token):
                tally.add_tokens([piece])
                buffer += piece.ids
                # A full block is held back until more tokens arrive, as it may be the last.
                while len(buffer) > stream.wants:
                    block, buffer = buffer[: stream.wants], buffer[stream.wants :]
                    yield block, False
            tally.closed = True
        if buffer:
            yield buffer, True


class ScoringRow(NamedTuple):
    """One row of a batch: a text, or one window of it."""

    accumulator: ScoreAccumulator
    sequence: list[int]
    """The tokens of the whole text, preceded by the start token."""
    begin: int
    """Start of the row in the sequence."""
    end: int
    scored: int
    """Number of its tokens that count."""
    right_context: int = 0
    """Number of tokens after those."""
    source: Sequence[int] = ()
    """The source tokens, special tokens included; empty for most systems."""

    @property
    def tokens(self) -> list[int]:
        return self.sequence[self.begin : self.end]

    @property
    def counted(self) -> slice:
        """The positions of the row that count."""
        last = self.end - self.begin - self.right_context
        return slice(last - self.scored, last)

    @property
    def positions(self) -> int:
        """Length of the row, or of its source where that is longer."""
        return max(self.end - self.begin, len(self.source))


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


def _check_window(
    window: int | None, stride: int | None, longest: int | None
) -> tuple[int | None, int | None]:
    """Window and stride of scoring; default: the system's own window and half of it."""
    if window is None:
        window = longest
    if window is None:
        if stride is not None:
            raise UserError("a stride needs a window; give both.")
        return None, None
    if window < 1 or (longest is not None and window > longest):
        most = "" if longest is None else f" and at most {longest}, the longest input it takes"
        raise UserError(f"a window must be 1 or more{most}, got {window}.")
    stride = max(1, window // 2) if stride is None else stride
    if not 1 <= stride <= window:
        raise UserError(f"a stride must be from 1 to the window's {window}, got {stride}.")
    return window, stride
