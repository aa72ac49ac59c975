"""Scoring of the texts of a chunk by one or several models: rows by text or by word, and totals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.score import Score, ScoreTotals, Summary
from lmlab.data.readers import Example
from lmlab.experiments.large_files.operation import Models, Operation, single_text
from lmlab.experiments.large_files.result_rows import Row, ScoreRow
from lmlab.scoring.score_tables import ScoredText, WordRow
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.side_by_side import score_side_by_side
from lmlab.scoring.source_scoring import SourceScorer, check_takes_source
from lmlab.scoring.word_segmentation import make_segmentation
from lmlab.training.run_folder import TrainedModel


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
        self.totals = {name: ScoreTotals() for name in self.models}
        first = next(examples, None)
        if first is None:
            return
        scorers = {name: self._scorer(model, first) for name, model in self.models.items()}
        waiting = deque[Example]()

        def remembered() -> Iterator[Example]:
            for example in chain([first], examples):
                waiting.append(example)
                yield example

        for scores in score_side_by_side(scorers, remembered()):
            example = waiting.popleft()
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
        if first.condition is None:
            scorer = Scorer(model.system, model.tokenizer, model.layout, **self.options)
            return lambda texts: scorer.score(map(single_text, texts), self.per_word)
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
        spans = make_segmentation(self.words_by).spans(text, line)
        scored = ScoredText(
            text=text, line=line, scores=scores, spans=spans, with_end=self.with_end
        )
        yield from scored.rows()
