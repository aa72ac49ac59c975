"""Evaluation of one run on one split (the input of model comparison); grouping of runs by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmlab.core.card import Card
from lmlab.core.score import Score, ScoreKind, Summary, TokenScore
from lmlab.data.corpus import Corpus, Layout
from lmlab.data.readers import Example
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.source_scoring import SourceScorer
from lmlab.training.run_config import RunConfig

IGNORED_SETTINGS = frozenset(
    {"log_every", "checkpoint_minutes", "checkpoint_steps", "snapshot_epochs"}
)
"""Training settings that do not affect the trained model."""

ProgressCallback = Callable[[str, int], None]
"""Called with the name of a run and the number of further tokens scored."""


class ScorableModel(Protocol):
    """Interface of a model to compare; `lmlab.training.run_folder.TrainedModel` is one."""

    @property
    def system(self) -> Any: ...
    @property
    def tokenizer(self) -> Any: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def config(self) -> RunConfig: ...
    @property
    def card(self) -> Card: ...
    @property
    def path(self) -> Path: ...
    @property
    def effective_source_tokenizer(self) -> Any: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitEvaluation:
    """Scores of one run on the split."""

    model: ScorableModel
    summary: Summary
    totals: NDArray[np.float64]
    """(N,) log-probability of each text."""
    tokens: NDArray[np.float64]
    characters: NDArray[np.float64]
    per_text: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """(N,) what metrics measure of each scored text, by the metric's name."""


def scorer_for(
    model: ScorableModel, corpus: Corpus, progress: ProgressCallback | None = None
) -> Scorer | SourceScorer:
    """The scorer of a model in its training layout, truncating where the corpus does.

    On a parallel corpus each text is scored given its source.
    """
    cut = corpus.layout.cut
    report = None if progress is None else lambda tokens: progress(model.path.name, tokens)
    if corpus.layout.kind == "pairs":
        return SourceScorer(
            model.system,
            model.tokenizer,
            model.effective_source_tokenizer,
            model.layout,
            cut=cut,
            progress=report,
        )
    return Scorer(
        model.system, model.tokenizer, model.layout, cut=cut, carry=cut is None, progress=report
    )


def evaluate_split(
    model: ScorableModel,
    corpus: Corpus,
    split: str,
    progress: ProgressCallback | None,
    *,
    measures: Mapping[str, Callable[[Score], float]],
    per_token: bool = False,
) -> SplitEvaluation:
    """Score every text of the split; only a few numbers per text are kept.

    `measures` are further ones, which may read the scores of tokens if `per_token`.
    """
    totals, tokens, characters, utf8_bytes, unknown = [], [], [], 0, 0
    measured: dict[str, list[float]] = {name: [] for name in measures}
    kind: ScoreKind = "exact"
    scorer = scorer_for(model, corpus, progress)
    for score in scorer.score_examples(corpus.split(split), per_token=per_token):
        totals.append(score.total)
        tokens.append(score.tokens)
        characters.append(score.characters)
        utf8_bytes += score.utf8_bytes
        unknown += score.unknown
        kind = score.kind
        for name, measure in measures.items():
            measured[name].append(measure(score))
    summary = Summary(
        total=math.fsum(totals),
        tokens=sum(tokens),
        characters=sum(characters),
        utf8_bytes=utf8_bytes,
        sequences=len(totals),
        unknown=unknown,
        kind=kind,
        convention=scorer.convention,
    )
    return SplitEvaluation(
        model=model,
        summary=summary,
        totals=np.array(totals, dtype=np.float64),
        tokens=np.array(tokens, dtype=np.float64),
        characters=np.array(characters, dtype=np.float64),
        per_text={name: np.array(values, dtype=np.float64) for name, values in measured.items()},
    )


def scored_tokens(
    model: ScorableModel, corpus: Corpus, examples: Sequence[Example]
) -> list[tuple[TokenScore, ...]]:
    """The tokens of texts with their log-probabilities."""
    return [score.per_token for score in scorer_for(model, corpus).score_examples(examples)]


def group_by_seed(evaluations: Sequence[SplitEvaluation]) -> dict[str, list[SplitEvaluation]]:
    """Group runs that differ only in their seed, in order of first occurrence."""
    groups: dict[str, list[SplitEvaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault(model_identity(evaluation.model), []).append(evaluation)
    return groups


def model_identity(model: ScorableModel) -> str:
    """A run's config without seeds and settings that do not affect the model."""
    config = model.config.to_json()
    dropped = IGNORED_SETTINGS | {"seed"}
    training = {k: v for k, v in config["training"].items() if k not in dropped}
    # Compare the corpus by content, not by the spelling of its path.
    key = config | {
        "training": training,
        "corpus": model.config.corpus.fingerprint,
        "tokens": tokenization(model),
    }
    compared = {k: v for k, v in key.items() if k not in ("seed", "lmlab", "format")}
    return json.dumps(compared, sort_keys=True, default=str)


def tokenization(model: ScorableModel) -> str:
    """Kind, size and fingerprint of a tokenizer: equal where the tokenisation is."""
    tokenizer = model.tokenizer
    return f"{tokenizer.kind}, {tokenizer.vocabulary.size} tokens ({tokenizer.fingerprint()[:8]})"
