"""Operations on the texts of a chunk: score, encode, translate or fill; rows come out."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from lmlab.core.errors import UserError
from lmlab.data.readers import Example
from lmlab.experiments.large_files.operation import Operation, chunk_seed, single_text
from lmlab.experiments.large_files.result_rows import FillRow, Row, TranslationRow, VectorRow
from lmlab.experiments.large_files.text_scoring import ScoreTexts
from lmlab.sampling.filled_text import FilledText
from lmlab.sampling.mask_filling import MaskFiller
from lmlab.sampling.translation import Translation, TranslationCandidate, make_translator
from lmlab.scoring.text_embeddings import TextEmbedder


class EncodeTexts(Operation):
    """A row with a vector for each text."""

    @staticmethod
    def row_class(options: Mapping[str, Any]) -> type:
        return VectorRow

    def rows(self, examples: Iterator[Example], chunk: int) -> Iterator[Row]:
        model = self.model
        embedder = TextEmbedder(
            model.system,
            model.effective_source_tokenizer,
            model.layout,
            model.card.name,
            **self.options,
        )
        texts = _Remembered(examples)
        for encoded in embedder.encode(map(single_text, texts)):
            assert encoded.vector is not None
            yield VectorRow(
                line=texts.next_line(),
                truncated=encoded.truncated,
                text=encoded.text,
                vector=encoded.vector.tolist(),
            )


class TranslateTexts(Operation):
    """A row for each translation of a text, best first."""

    sources = True

    @staticmethod
    def row_class(options: Mapping[str, Any]) -> type:
        return TranslationRow

    def rows(self, examples: Iterator[Example], chunk: int) -> Iterator[Row]:
        model, options = self.model, self.options
        translator = make_translator(
            model.system,
            model.tokenizer,
            model.effective_source_tokenizer,
            **{**options, "seed": chunk_seed(options["seed"], chunk)},
        )
        texts = _Remembered(examples)
        batches = _batches((example.text for example in texts), TEXTS_PER_BATCH)
        for translation in translator.translate(batches):
            yield from _translation_rows(translation, texts.next_line())


TEXTS_PER_BATCH = 256
"""Sources that are read ahead, to batch them by length."""
NO_TRANSLATION = TranslationCandidate(
    text="", log_prob=math.nan, score=math.nan, tokens=0, finished=False
)


def _translation_rows(translation: Translation, line: int) -> Iterator[TranslationRow]:
    for rank, candidate in enumerate(translation.candidates or (NO_TRANSLATION,), 1):
        yield TranslationRow(
            line=line,
            rank=rank,
            text=candidate.text,
            log_prob=candidate.log_prob,
            score=candidate.score,
            tokens=candidate.tokens,
            finished=candidate.finished,
            truncated_tokens=translation.truncated_tokens,
            source=translation.source,
        )


class FillTexts(Operation):
    """A row for each answer for a mask."""

    @staticmethod
    def row_class(options: Mapping[str, Any]) -> type:
        return FillRow

    def rows(self, examples: Iterator[Example], chunk: int) -> Iterator[Row]:
        options = dict(self.options)
        limits = {name: options.pop(name) for name in ("top", "beam", "max_length")}
        seed, sample = options.pop("seed"), options.pop("sample")
        generator = torch.Generator().manual_seed(chunk_seed(seed, chunk)) if sample else None
        model = self.model
        filler = MaskFiller(
            system=model.system, tokenizer=model.tokenizer, layout=model.layout, **limits
        )
        texts = _Remembered(examples)
        try:
            for filled in filler.fill(map(single_text, texts), generator=generator, **options):
                yield from _fill_rows(filled, texts.next_line())
        except UserError as error:  # texts are filled one by one, so it is of the last one read
            raise UserError(f"line {texts.last_line}: {error}") from None


def _fill_rows(filled: FilledText, line: int) -> Iterator[FillRow]:
    for mask, position in enumerate(filled.masks, 1):
        for rank, option in enumerate(position.options, 1):
            yield FillRow(
                line=line,
                mask=mask,
                rank=rank,
                answer=option.text,
                log_prob=option.log_prob,
                text=filled.text,
            )
    for rank, candidate in enumerate(filled.candidates, 1):
        for mask, answer in enumerate(candidate.answers, 1):
            yield FillRow(
                line=line,
                mask=mask,
                rank=rank,
                answer=answer,
                log_prob=candidate.log_prob,
                text=candidate.text,
            )


class _Remembered:
    """Examples, and the lines of those that were read and have no result yet."""

    def __init__(self, examples: Iterator[Example]) -> None:
        self.examples = examples
        self.waiting = deque[int]()
        self.last_line = 0

    def __iter__(self) -> Iterator[Example]:
        for example in self.examples:
            self.last_line = example.line or 0
            self.waiting.append(self.last_line)
            yield example

    def next_line(self) -> int:
        """The line of the next result."""
        return self.waiting.popleft()


def _batches(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


OPERATIONS: dict[str, type[Operation]] = {
    "score": ScoreTexts,
    "encode": EncodeTexts,
    "translate": TranslateTexts,
    "fill": FillTexts,
}
