"""What is done with the texts of a chunk: score, encode, translate or fill; rows come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, ClassVar

import torch

from lmlab.core.errors import UserError
from lmlab.core.score import Score, ScoreTotals, Summary
from lmlab.core.untrusted_input import MAX_SEED
from lmlab.data.readers import Example
from lmlab.experiments.large_files.result_rows import (
    FillRow,
    Row,
    ScoreRow,
    TranslationRow,
    VectorRow,
)
from lmlab.sampling.filled_text import FilledText
from lmlab.scoring.score_tables import ScoredText, WordRow
from lmlab.training.run_folder import TrainedModel

Models = Mapping[str, TrainedModel]
SEED_STEP = 1_000_003
"""Between the seeds of chunks, so that samples of two chunks do not repeat each other."""


class Operation(ABC):
    """Makes rows of texts by trained models."""

    sources: ClassVar[bool] = False
    """Whether of a line with two columns the first is the text."""

    def __init__(self, models: Models, options: Mapping[str, Any]) -> None:
        self.models, self.options = models, dict(options)

    @staticmethod
    @abstractmethod
    def row_class(options: Mapping[str, Any]) -> type:
        """The class of the rows that these options give."""

    @property
    def model(self) -> TrainedModel:
        """The only model."""
        [model] = self.models.values()
        return model

    @abstractmethod
    def rows(self, examples: Iterator[Example], chunk: int) -> Iterator[Row]:
        """Rows of the texts of a chunk, in order; it depends on nothing outside of the chunk."""

    def summaries(self) -> dict[str, Summary]:
        """Totals of the rows given by the last call of `rows`, by model."""
        return {}


def chunk_seed(seed: int, chunk: int) -> int:
    """The seed of a chunk; that of the first is the user's."""
    return (seed + SEED_STEP * chunk) % (MAX_SEED + 1)


class ScoreTexts(Operation):
    """A row for each text and model, or for each word of them."""

    def __init__(self, models: Models, options: Mapping[str, Any]) -> None:
        super().__init__(models, options)
        self.words_by = self.options.pop("words_by")
        self.with_end = not self.options.pop("no_end")
        self.per_word = self.options.pop("per_word")
        self.totals: dict[str, ScoreTotals] = {}

    @staticmethod
    def row_class(options: Mapping[str, Any]) -> type:
        return WordRow if options["per_word"] else ScoreRow

    def rows(self, examples: Iterator[Example], chunk: int) -> Iterator[Row]:
        from lmlab.scoring.side_by_side import score_side_by_side

        self.totals = {name: ScoreTotals() for name in self.models}
        first = next(examples, None)
        if first is None:
            return
        scorers = {name: self._scorer(model, first) for name, model in self.models.items()}
        waiting: list[Example] = []

        def remembered() -> Iterator[Example]:
            for example in chain([first], examples):
                waiting.append(example)
                yield example

        for scores in score_side_by_side(scorers, remembered()):
            example = waiting.pop(0)
            for name, score in scores.items():
                self.totals[name].add(score)
            yield from self._rows(example, scores)

    def summaries(self) -> dict[str, Summary]:
        found = {}
        for name, totals in self.totals.items():
            with suppress(UserError):  # no text in this chunk
                found[name] = totals.summary()
        return found

    def _scorer(
        self, model: TrainedModel, first: Example
    ) -> Callable[[Iterator[Example]], Iterator[Score]]:
        from lmlab.scoring.scorer import Scorer
        from lmlab.scoring.source_scoring import SourceScorer, check_takes_source

        if first.condition is None:
            scorer = Scorer(model.system, model.tokenizer, model.layout, **self.options)
            return lambda texts: scorer.score(map(_single_text, texts), self.per_word)
        check_takes_source(model.card)
        of_pairs = SourceScorer(
            model.system,
            model.tokenizer,
            model.effective_source_tokenizer,
            model.layout,
            **self.options,
        )
        return lambda texts: of_pairs.score_examples(texts, self.per_word)

    def _rows(self, example: Example, scores: Mapping[str, Score]) -> Iterator[Row]:
        line = example.line or 0
        if self.per_word:
            yield from self._word_rows(example.text, line, scores)
            return
        for name, score in scores.items():
            yield ScoreRow(
                model=name,
                kind=score.kind,
                line=line,
                log_prob=score.figure,
                low=score.low,
                high=score.high,
                tokens=score.tokens,
                characters=score.characters,
                unknown=score.unknown,
                source=score.source,
                text=score.text,
            )

    def _word_rows(self, text: str, line: int, scores: Mapping[str, Score]) -> Iterator[WordRow]:
        from lmlab.scoring.word_segmentation import make_segmentation

        spans = make_segmentation(self.words_by).spans(text, line)
        scored = ScoredText(
            text=text, line=line, scores=scores, spans=spans, with_end=self.with_end
        )
        yield from scored.rows()


class EncodeTexts(Operation):
    """A row with a vector for each text."""

    @staticmethod
    def row_class(options: Mapping[str, Any]) -> type:
        return VectorRow

    def rows(self, examples: Iterator[Example], chunk: int) -> Iterator[Row]:
        from lmlab.scoring.text_embeddings import TextEmbedder

        model = self.model
        embedder = TextEmbedder(
            model.system,
            model.effective_source_tokenizer,
            model.layout,
            model.card.name,
            **self.options,
        )
        texts = _Remembered(examples)
        for encoded in embedder.encode(map(_single_text, texts)):
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
        from lmlab.sampling.translation import Translation, make_translator

        model, options = self.model, self.options
        translator = make_translator(
            model.system,
            model.tokenizer,
            model.effective_source_tokenizer,
            **{**options, "seed": chunk_seed(options["seed"], chunk)},
        )
        texts = _Remembered(examples)

        def rows(translation: Translation, line: int) -> Iterator[TranslationRow]:
            for rank, candidate in enumerate(translation.candidates, 1):
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
            if not translation.candidates:
                yield TranslationRow(
                    line=line,
                    rank=1,
                    text="",
                    log_prob=None,
                    score=None,
                    tokens=0,
                    finished=False,
                    truncated_tokens=translation.truncated_tokens,
                    source=translation.source,
                )

        batches = _batches((example.text for example in texts), TEXTS_PER_BATCH)
        for translation in translator.translate(batches):
            yield from rows(translation, texts.next_line())


TEXTS_PER_BATCH = 256
"""Sources that are read ahead, to batch them by length."""


class FillTexts(Operation):
    """A row for each answer for a mask."""

    @staticmethod
    def row_class(options: Mapping[str, Any]) -> type:
        return FillRow

    def rows(self, examples: Iterator[Example], chunk: int) -> Iterator[Row]:
        from lmlab.sampling.mask_filling import MaskFiller

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
            for filled in filler.fill(map(_single_text, texts), generator=generator, **options):
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
        self.waiting: list[int] = []
        self.last_line = 0

    def __iter__(self) -> Iterator[Example]:
        for example in self.examples:
            self.last_line = example.line or 0
            self.waiting.append(self.last_line)
            yield example

    def next_line(self) -> int:
        """The line of the next result."""
        return self.waiting.pop(0)


def _single_text(example: Example) -> str:
    if example.condition is not None:
        raise UserError(f"line {example.line} has a source and a text; give a file of texts.")
    return example.text


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
