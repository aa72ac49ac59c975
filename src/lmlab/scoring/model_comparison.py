"""Model comparison on a split: seeds grouped, bootstrap tests of differences, score kind by row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import takewhile
from typing import Any

from lmlab.core.errors import UserError
from lmlab.core.score import SCORE_KINDS, Convention
from lmlab.core.untrusted_input import check_seed
from lmlab.data.corpus import Corpus, TruthWithLength
from lmlab.data.readers import Example
from lmlab.scoring.compared_settings import compared_settings
from lmlab.scoring.comparison_records import (
    ComparedSentence,
    Comparison,
    ComparisonRow,
    EntropyFloor,
)
from lmlab.scoring.metric import EvaluatedRuns, Metric, Number, TrueScores
from lmlab.scoring.metric_registry import all_metrics
from lmlab.scoring.multiple_comparisons import Correction
from lmlab.scoring.paired_differences import EvaluatedRow, paired_differences, resolution_notes
from lmlab.scoring.split_evaluation import (
    ProgressCallback,
    ScorableModel,
    SplitEvaluation,
    evaluate_split,
    group_by_seed,
    scored_tokens,
    tokenization,
)

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
    resamples: int | None = None,
    correction: Correction = "holm",
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Score every model on the split, group runs by seed, and test differences.

    Each model reads the texts in its training layout (from a start token or with carried state,
    with or without an end token), truncated where the corpus truncates. Cost: one pass over the
    split per model, and `resamples` sums over its sentences (by default as many as the number of
    tests needs, see `enough_resamples`); memory: a few numbers per sentence.
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
    settings = compared_settings([group[0].model for group in groups])
    entries = []
    for group, name, values in zip(groups, _names(groups), settings.rows, strict=True):
        runs = EvaluatedRuns(runs=group, truth=truth)
        entries.append(EvaluatedRow(row=_row(runs, name, metrics, values), runs=runs))
    entries.sort(key=lambda entry: _order(entry.row))
    rows = tuple(entry.row for entry in entries)
    differences = paired_differences(
        entries, metrics, seed=seed, resamples=resamples, correction=correction
    )
    return Comparison(
        corpus=corpus.name,
        split=split,
        rows=rows,
        differences=differences,
        floor=_floor(corpus, truth),
        notes=(
            *comparison_notes(rows, corpus, split, metrics),
            *resolution_notes(len(differences), resamples, correction),
        ),
        metrics=metrics,
        correction=correction,
        differing=settings.names,
        sentences=_compared_sentences(entries, corpus, split),
        totals={entry.row.name: entry.mean(lambda run: run.totals) for entry in entries},
    )


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


def _row(
    runs: EvaluatedRuns, name: str, metrics: Sequence[Metric], settings: Mapping[str, Any]
) -> ComparisonRow:
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
        settings=settings,
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


def _compared_sentences(
    entries: Sequence[EvaluatedRow], corpus: Corpus, split: str
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
