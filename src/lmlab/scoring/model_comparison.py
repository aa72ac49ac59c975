"""Model comparison on a split: seeds grouped, bootstrap tests of differences, score kind by row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, takewhile

import numpy as np
from numpy.typing import NDArray

from lmlab.core.errors import UserError
from lmlab.core.score import NORMALISED_KINDS, SCORE_KINDS, Convention
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
    Unit,
)
from lmlab.scoring.split_evaluation import (
    ProgressCallback,
    ScorableModel,
    SplitEvaluation,
    evaluate_split,
    group_by_seed,
    scored_tokens,
    tokenization,
    training_seconds,
)

FEW_TEXTS = 30
"""Fewer texts than this make a bootstrap over them unreliable."""


def comparison_notes(rows: Sequence[ComparisonRow], corpus: Corpus, split: str) -> Iterator[str]:
    """A sentence for each caveat; none where all rows are comparable."""
    yield from _notes_on_all(rows)
    for row in rows:
        yield from _notes_on_row(row)
    if len(rows) > 1 and rows[0].sequences < FEW_TEXTS:
        yield (
            f"Only {rows[0].sequences} texts were scored: with so few, the bootstrap "
            "intervals and p-values of the differences are overconfident."
        )
    if any(row.seed_std is not None for row in rows):
        yield "± is the standard deviation over seeds; nats are their mean, perplexity its exp."
    if corpus.truth is not None and any(row.floor is None for row in rows):
        yield (
            f"The entropy of {corpus.name} is a lower bound only where whole texts of its own "
            "are scored with their ends."
        )
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
            "tokens are the same; bits per character compare everywhere, unknown words aside."
        )
    differing = [
        spec.name
        for spec in fields(Convention)
        if spec.name != "tokenizer"
        and len({getattr(row.convention, spec.name) for row in rows}) > 1
    ]
    if differing:
        yield f"The rows were scored by different conventions ({', '.join(differing)})."


def _notes_on_row(row: ComparisonRow) -> Iterator[str]:
    if len(set(row.seeds)) < len(row.seeds):
        yield f"{row.name}: some of its runs share a seed, so their spread is not one over seeds."
    if math.isinf(row.nats_per_token):
        yield f"{row.name} gives some text probability zero, so its perplexity is infinite."
    if math.isnan(row.nats_per_token):
        yield f"{row.name} gives scores that are NaN: its training diverged."
    if row.unknown:
        share = row.unknown / max(row.tokens, 1)
        yield (
            f"{row.name}: {row.unknown:,} of {row.tokens:,} tokens ({share:.1%}) are unknown and "
            "counted as the one token <unk>, which is easier than the word itself."
        )


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
    evaluations = [evaluate_split(model, corpus, split, progress) for model in models]
    groups = list(group_by_seed(evaluations).values())
    true = _true_nats(corpus, split)
    entries = [
        _Entry(
            row=_row(group, name, true),
            first=group[0],
            totals=np.mean([evaluation.totals for evaluation in group], axis=0),
        )
        for group, name in zip(groups, _names(groups), strict=True)
    ]
    entries.sort(key=lambda entry: _order(entry.row))
    rows = tuple(entry.row for entry in entries)
    return Comparison(
        corpus=corpus.name,
        split=split,
        rows=rows,
        differences=tuple(_differences(entries, seed, resamples)),
        floor=_floor(corpus, true),
        notes=tuple(comparison_notes(rows, corpus, split)),
        sentences=_compared_sentences(entries, corpus, split),
        totals={entry.row.name: entry.totals for entry in entries},
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Entry:
    """A row with the data its differences are computed from."""

    row: ComparisonRow
    first: SplitEvaluation
    totals: NDArray[np.float64]
    """(N,) log-probability of each text, the mean over seeds."""


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


def _row(group: Sequence[SplitEvaluation], name: str, true: _True | None) -> ComparisonRow:
    first = group[0].summary
    model = group[0].model
    nats = [run.summary.nats_per_token for run in group]
    mean = float(np.mean(nats))
    has_spread = len(group) > 1 and all(map(math.isfinite, nats))
    floor = None
    if true is not None and _whole_texts(first.convention):
        floor = true.nats / first.tokens
    seconds = [
        seconds_of_run
        for run in group
        if (seconds_of_run := training_seconds(run.model.path)) is not None
    ]
    return ComparisonRow(
        name=name,
        runs=tuple(str(run.model.path) for run in group),
        system=model.card.name,
        seeds=tuple(int(run.model.config.get("seed", 0)) for run in group),
        kind=first.kind,
        convention=first.convention,
        tokenization=tokenization(model),
        parameters=int(model.system.parameter_count),
        nats_per_token=mean,
        seed_std=float(np.std(nats, ddof=1)) if has_spread else None,
        perplexity=_perplexity(mean) if first.kind in NORMALISED_KINDS else None,
        bits_per_character=_mean_bits(group),
        tokens=first.tokens,
        characters=first.characters,
        unknown=first.unknown,
        sequences=first.sequences,
        floor=floor,
        # A score that is no log-probability may lie below the entropy: no regret.
        regret=None if floor is None or first.kind not in NORMALISED_KINDS else mean - floor,
        train_seconds=float(np.mean(seconds)) if seconds else None,
    )


def _mean_bits(group: Sequence[SplitEvaluation]) -> float | None:
    """Bits per character, the mean over seeds; None where they are undefined."""
    all_bits = [evaluation.summary.bits_per_character for evaluation in group]
    defined = [bits for bits in all_bits if bits is not None]
    return float(np.mean(defined)) if defined else None


def _perplexity(nats: float) -> float | None:
    if math.isnan(nats):
        return None
    return math.exp(nats) if nats < 700 else math.inf


def _whole_texts(convention: Convention) -> bool:
    """Whether whole texts with end tokens are scored, as by the true distribution."""
    return convention.end and convention.max_length is None


@dataclass(frozen=True, kw_only=True)
class _True:
    """Scores of the true distribution on the split."""

    nats: float
    texts: int
    characters: int


def _true_nats(corpus: Corpus, split: str) -> _True | None:
    """Compute - Σ log p_true over the split's texts; None where it is unknown or infinite."""
    if corpus.truth is None:
        return None
    values, characters = [], 0
    for example in corpus.split(split):
        values.append(-corpus.truth.log_prob(example.text))
        characters += len(example.text)
    nats = math.fsum(values)
    if not math.isfinite(nats):
        return None
    return _True(nats=nats, texts=len(values), characters=characters)


def _floor(corpus: Corpus, true: _True | None) -> EntropyFloor | None:
    truth = corpus.truth
    if true is None or truth is None:
        return None
    per_token = None
    if isinstance(truth, TruthWithLength):
        per_token = truth.entropy / truth.expected_tokens
    return EntropyFloor(
        nats_per_text=true.nats / true.texts,
        bits_per_character=true.nats / math.log(2) / max(true.characters, 1),
        entropy=truth.entropy,
        entropy_per_token=per_token,
    )


def _order(row: ComparisonRow) -> tuple[int, str, float, str]:
    """Sort key: kind (exact first), tokenisation, nats per token, name."""
    nats = math.inf if math.isnan(row.nats_per_token) else row.nats_per_token
    return SCORE_KINDS.index(row.kind), row.tokenization, nats, row.name


def _differences(entries: Sequence[_Entry], seed: int, resamples: int) -> Iterator[Difference]:
    """All pairs of rows of the same kind, the better first; per character where tokens differ, and
    omitted where that is undefined."""
    finite = [entry for entry in entries if np.isfinite(entry.totals).all()]
    if len(finite) < 2:
        return
    nats = np.stack([-entry.totals for entry in finite], 1)
    counts: dict[Unit, NDArray[np.float64]] = {
        "token": np.stack([entry.first.tokens for entry in finite], 1),
        "character": np.stack([entry.first.characters for entry in finite], 1),
    }
    ratios: dict[Unit, NDArray[np.float64]] = {}
    for i, j in combinations(range(len(finite)), 2):
        one, other = finite[i].row, finite[j].row
        if one.kind != other.kind:
            continue
        unit: Unit = "token" if one.tokenization == other.tokenization else "character"
        if unit == "character" and None in (one.bits_per_character, other.bits_per_character):
            continue
        if unit not in ratios:
            ratios[unit] = paired_bootstrap(nats, counts[unit], seed=seed, resamples=resamples)
        means = nats.sum(0) / np.maximum(counts[unit].sum(0), 1.0)
        better, worse = (i, j) if means[i] <= means[j] else (j, i)
        difference = interval(ratios[unit], float(means[better] - means[worse]), better, worse)
        yield Difference(
            first=finite[better].row.name,
            second=finite[worse].row.name,
            nats=difference.value,
            low=difference.low,
            high=difference.high,
            p_value=difference.p_value,
            unit=unit,
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
    by_token = {e.row.name: scored_tokens(e.first.model, corpus, examples) for e in entries}
    return tuple(
        ComparedSentence(
            text=example.text,
            source=example.condition,
            tokens={name: text_tokens[index] for name, text_tokens in by_token.items()},
        )
        for index, example in enumerate(examples)
    )
