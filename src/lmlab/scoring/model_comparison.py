"""Model comparison on a split: seeds grouped, bootstrap tests of differences, score kind by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import combinations, takewhile

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.core.score import SCORE_KINDS, Convention
from lmlab.core.untrusted_input import check_seed
from lmlab.data.corpus import Corpus, TruthWithLength
from lmlab.data.readers import Example
from lmlab.scoring.bootstrap import interval, paired_bootstrap
from lmlab.scoring.comparison_records import (
    ComparedSentence,
    Comparison,
    ComparisonRow,
    Difference,
    EntropyFloor,
)
from lmlab.scoring.metric import EvaluatedRuns, Metric, Number, TrueScores
from lmlab.scoring.metric_registry import all_metrics
from lmlab.scoring.split_evaluation import (
    ProgressCallback,
    ScorableModel,
    SplitEvaluation,
    evaluate_split,
    group_by_seed,
    scored_tokens,
    tokenization,
)

Values = NDArray[np.float64]

FEW_TEXTS = 30
"""Fewer texts than this make a bootstrap over them unreliable."""


def comparison_notes(
    rows: Sequence[ComparisonRow], corpus: Corpus, split: str, metrics: Sequence[Metric]
) -> Iterator[str]:
    """A sentence for each caveat; none where all rows are comparable."""
    yield from _notes_on_all(rows)
    for row in rows:
        if len(set(row.seeds)) < len(row.seeds):
            yield (
                f"{row.name}: some of its runs share a seed, so their spread is not one over seeds."
            )
        for metric in metrics:
            yield from metric.row_notes(row)
    if len(rows) > 1 and rows[0].sequences < FEW_TEXTS:
        yield (
            f"Only {rows[0].sequences} texts were scored: with so few, the bootstrap "
            "intervals and p-values of the differences are overconfident."
        )
    for metric in metrics:
        yield from metric.notes(rows, corpus)
    if split not in corpus.splits:
        yield f"{corpus.name} has no {split} split; another is used instead."


def _notes_on_all(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    kinds = sorted({row.kind for row in rows})
    if len(kinds) > 1:
        yield (
            f"The rows hold scores of different kinds ({', '.join(kinds)}): they are ranked within "
            "a kind only, and no difference is taken between kinds."
        )
    if len({row.tokenization for row in rows}) > 1:
        yield (
            "The rows have different tokens: nats per token and perplexity compare only where the "
            "tokens are the same; bits per character and per byte compare everywhere, unknown "
            "words aside."
        )
    differing = [
        spec.name
        for spec in fields(Convention)
        if spec.name != "tokenizer"
        and len({getattr(row.convention, spec.name) for row in rows}) > 1
    ]
    if differing:
        yield f"The rows were scored by different conventions ({', '.join(differing)})."


MAX_SENTENCES = 5
MAX_SENTENCE_CHARACTERS = 500
"""Number and maximum length of the sentences kept with token scores, for a figure."""


def compare_models(
    models: Sequence[ScorableModel],
    corpus: Corpus,
    split: str = "test",
    *,
    seed: int = 0,
    resamples: int = 2000,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Score every model on the split, group runs by seed, and test differences.

    Each model reads the texts in its training layout (from a start token or with carried state,
    with or without an end token), truncated where the corpus truncates. Cost: one pass over the
    split per model, and `resamples` sums over its sentences; memory: a few numbers per sentence.
    """
    check_seed(seed)
    _check(models, corpus)
    metrics = tuple(all_metrics().values())
    measures = {metric.name: metric.per_text for metric in metrics if metric.per_text is not None}
    per_token = any(metric.reads_tokens for metric in metrics)
    evaluations = [
        evaluate_split(model, corpus, split, progress, measures=measures, per_token=per_token)
        for model in models
    ]
    groups = list(group_by_seed(evaluations).values())
    truth = _true_scores(corpus, split)
    entries = []
    for group, name in zip(groups, _names(groups), strict=True):
        runs = EvaluatedRuns(runs=group, truth=truth)
        entries.append(_Entry(row=_row(runs, name, metrics), runs=runs))
    entries.sort(key=lambda entry: _order(entry.row))
    rows = tuple(entry.row for entry in entries)
    return Comparison(
        corpus=corpus.name,
        split=split,
        rows=rows,
        differences=tuple(_differences(entries, metrics, seed, resamples)),
        floor=_floor(corpus, truth),
        notes=tuple(comparison_notes(rows, corpus, split, metrics)),
        metrics=metrics,
        sentences=_compared_sentences(entries, corpus, split),
        totals={entry.row.name: entry.mean(lambda run: run.totals) for entry in entries},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Entry:
    """A row with the data its differences are computed from."""

    row: ComparisonRow
    runs: EvaluatedRuns

    def mean(self, of_run: Callable[[SplitEvaluation], NDArray[np.float64]]) -> Values:
        """(N,) numbers of each text, the mean over seeds."""
        mean: Values = np.mean([of_run(run) for run in self.runs.runs], axis=0)
        return mean


def _check(models: Sequence[ScorableModel], corpus: Corpus) -> None:
    if not models:
        raise UserError("there is nothing to compare; give at least one run.")
    paths = [str(model.path) for model in models]
    repeated = sorted({path for path in paths if paths.count(path) > 1})
    if repeated:
        raise UserError(
            f"the run {repeated[0]} is given twice; name each run once (lmlab.wrap takes a name=)."
        )
    for model in models:
        _check_sides(model, corpus)


def _check_sides(model: ScorableModel, corpus: Corpus) -> None:
    """A UserError where a model can't use the corpus's sources, or needs some."""
    if corpus.layout.kind == "pairs" and not model.card.conditional:
        raise UserError(
            f"{corpus.name} holds pairs, and {model.path.name} ({model.card.name}) scores "
            "texts without a source; remove it, or give a corpus of single texts."
        )
    if corpus.layout.kind != "pairs" and model.layout.kind == "pairs":
        raise UserError(
            f"{model.path.name} ({model.card.name}) scores a text given its source, and "
            f"{corpus.name} holds single texts; remove it, or give a corpus of pairs."
        )


def _names(groups: Sequence[Sequence[SplitEvaluation]]) -> list[str]:
    """The system's name; where rows share it, the common part of their folder names."""
    systems = [group[0].model.card.name for group in groups]
    folders = [_common_name([run.model.path.name for run in group]) for group in groups]
    names = [
        system if systems.count(system) == 1 else folder
        for system, folder in zip(systems, folders, strict=True)
    ]
    paths = [str(group[0].model.path) for group in groups]
    return [
        name if names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)
    ]


def _common_name(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    # The first and last in sorted order differ earliest, so their common prefix is that of all.
    first, last = min(names), max(names)
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    common = first[: sum(1 for _ in shared)]
    return common.rstrip("-_. ").removesuffix("seed").rstrip("-_. ") or names[0]


def _row(runs: EvaluatedRuns, name: str, metrics: Sequence[Metric]) -> ComparisonRow:
    first, model = runs.first.summary, runs.first.model
    values: dict[str, Number | None] = {}
    for metric in metrics:
        values[metric.name] = metric.value(runs)
        if metric.spread is not None:
            values[metric.spread.name] = metric.spread.compute(runs)
    return ComparisonRow(
        name=name,
        runs=tuple(str(run.model.path) for run in runs.runs),
        system=model.card.name,
        seeds=tuple(run.model.config.seed for run in runs.runs),
        kind=first.kind,
        convention=first.convention,
        tokenization=tokenization(model),
        tokens=first.tokens,
        characters=first.characters,
        utf8_bytes=first.utf8_bytes,
        unknown=first.unknown,
        sequences=first.sequences,
        values=values,
    )


def _true_scores(corpus: Corpus, split: str) -> TrueScores | None:
    """Compute - Σ log p_true over the split's texts; None where it is unknown or infinite."""
    if corpus.truth is None:
        return None
    values, characters, utf8_bytes = [], 0, 0
    for example in corpus.split(split):
        values.append(-corpus.truth.log_prob(example.text))
        characters += len(example.text)
        utf8_bytes += len(example.text.encode())
    nats = math.fsum(values)
    if not math.isfinite(nats):
        return None
    return TrueScores(nats=nats, texts=len(values), characters=characters, utf8_bytes=utf8_bytes)


def _floor(corpus: Corpus, true: TrueScores | None) -> EntropyFloor | None:
    truth = corpus.truth
    if true is None or truth is None:
        return None
    per_token = None
    if isinstance(truth, TruthWithLength):
        per_token = truth.entropy / truth.expected_tokens
    return EntropyFloor(
        nats_per_text=true.nats / true.texts,
        bits_per_character=true.nats / math.log(2) / max(true.characters, 1),
        bits_per_byte=true.nats / math.log(2) / max(true.utf8_bytes, 1),
        entropy=truth.entropy,
        entropy_per_token=per_token,
    )


def _order(row: ComparisonRow) -> tuple[int, str, float, str]:
    """Sort key: kind (exact first), tokenisation, nats per token, name."""
    nats = math.inf if math.isnan(row.nats_per_token) else row.nats_per_token
    return SCORE_KINDS.index(row.kind), row.tokenization, nats, row.name


def _differences(
    entries: Sequence[_Entry], metrics: Sequence[Metric], seed: int, resamples: int
) -> Iterator[Difference]:
    """All pairs of rows of the same kind, for every metric that is tested, the better first."""
    tests = [_TestedMetric(metric, entries, seed, resamples) for metric in metrics if metric.test]
    for i, j in combinations(range(len(entries)), 2):
        if entries[i].row.kind == entries[j].row.kind:
            for test in tests:
                yield from test.difference(i, j)


class _TestedMetric:
    """A metric's paired bootstrap over the entries of which it is finite."""

    def __init__(
        self, metric: Metric, entries: Sequence[_Entry], seed: int, resamples: int
    ) -> None:
        assert metric.test is not None
        self.metric, self.test, self.entries = metric, metric.test, entries
        self.seed, self.resamples = seed, resamples
        totals = [entry.mean(self.test.totals) for entry in entries]
        finite = [index for index, values in enumerate(totals) if np.isfinite(values).all()]
        self.column = {index: column for column, index in enumerate(finite)}
        if finite:
            self.totals = np.stack([totals[index] for index in finite], 1)
            first = [self.test.counts(entries[index].runs.first) for index in finite]
            self.counts = np.stack(first, 1)

    @cached_property
    def ratios(self) -> Values:
        """(R, M) bootstrap replicates."""
        return paired_bootstrap(self.totals, self.counts, seed=self.seed, resamples=self.resamples)

    @cached_property
    def means(self) -> Values:
        """(M,) the metric itself."""
        means: Values = self.totals.sum(0) / np.maximum(self.counts.sum(0), 1.0)
        return means

    def difference(self, i: int, j: int) -> Iterator[Difference]:
        """The difference between two entries, if it is tested."""
        rows = self.entries[i].row, self.entries[j].row
        if not {i, j} <= self.column.keys() or not self.test.applies(*rows):
            return
        one, other = self.column[i], self.column[j]
        sign = -1.0 if self.metric.lower_is_better is False else 1.0
        in_order = sign * self.means[one] <= sign * self.means[other]
        (first, better), (second, worse) = (
            ((rows[0], one), (rows[1], other)) if in_order else ((rows[1], other), (rows[0], one))
        )
        value = float(self.means[better] - self.means[worse])
        difference = interval(self.ratios, value, better, worse)
        yield Difference(
            first=first.name,
            second=second.name,
            value=difference.value,
            low=difference.low,
            high=difference.high,
            p_value=difference.p_value,
            quantity=self.test.quantity,
            unit=self.test.unit,
        )


def _compared_sentences(
    entries: Sequence[_Entry], corpus: Corpus, split: str
) -> tuple[ComparedSentence, ...]:
    """The first few distinct short texts of the split, with token scores."""
    short: dict[str, Example] = {}
    for example in corpus.split(split).first(4 * MAX_SENTENCES):
        if len(example.text) <= MAX_SENTENCE_CHARACTERS:
            short.setdefault(example.text, example)
    examples = list(short.values())[:MAX_SENTENCES]
    by_token = {e.row.name: scored_tokens(e.runs.first.model, corpus, examples) for e in entries}
    return tuple(
        ComparedSentence(
            text=example.text,
            source=example.condition,
            tokens={name: text_tokens[index] for name, text_tokens in by_token.items()},
        )
        for index, example in enumerate(examples)
    )
