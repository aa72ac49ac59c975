"""Replaced token detection (ELECTRA): the probability of each token that it was replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from torch import Tensor

from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import Detect, require
from lmlab.core.system import System
from lmlab.core.tokenizer_protocol import TokenizerProtocol
from lmlab.data.batches import preferred_tokens_per_batch
from lmlab.data.corpus import Layout
from lmlab.scoring.encoded_texts import FramedText, frame_text, framed_batches
from lmlab.scoring.scorer import chunk_texts


@dataclass(frozen=True, kw_only=True)
class DetectedToken:
    """A token and the probability that it was replaced."""

    token: str
    """As spelled in the vocabulary."""
    start: int
    end: int
    """Its characters are [start, end)."""
    probability: float
    """P(replaced) by the detector."""


@dataclass(frozen=True, kw_only=True)
class DetectedText:
    """A text and the probability of each of its tokens that it was replaced."""

    text: str
    tokens: tuple[DetectedToken, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def replaced(self, threshold: float = 0.5) -> tuple[DetectedToken, ...]:
        """The tokens whose probability is at least the threshold."""
        return tuple(token for token in self.tokens if token.probability >= threshold)


def detect_texts(
    system: System,
    tokenizer: TokenizerProtocol,
    layout: Layout,
    texts: Iterable[str],
    *,
    progress: Callable[[int], None] = lambda tokens: None,
) -> Iterator[DetectedText]:
    """Detect replaced tokens of each text, in order and in bounded memory."""
    detector = require(system, Detect, "detect")
    budget, pad = preferred_tokens_per_batch(system), tokenizer.vocabulary.pad
    for chunk in chunk_texts(texts, size=len):
        rows = [frame_text(tokenizer, layout, text, None) for text in chunk]
        system.check_length(max(len(row.ids) for row in rows))
        detected: dict[int, DetectedText] = {}
        for group, batch in framed_batches(rows, budget, system, pad):
            with evaluation_mode(system):
                probabilities = detector.detect(batch).sigmoid().cpu()
            for batch_row, index in enumerate(group):
                detected[index] = _detected(tokenizer, rows[index], probabilities[batch_row])
            progress(int(batch.lengths.sum()))
        yield from (detected[index] for index in range(len(rows)))


def _detected(tokenizer: TokenizerProtocol, row: FramedText, probabilities: Tensor) -> DetectedText:
    """The probabilities of the text's own tokens, without special tokens."""
    values: Sequence[float] = probabilities.tolist()
    tokens = tuple(
        DetectedToken(
            token=tokenizer.token(row.ids[position]),
            start=row.spans[position][0],
            end=row.spans[position][1],
            probability=values[position],
        )
        for position in row.text_positions
    )
    return DetectedText(text=row.text, tokens=tokens)
