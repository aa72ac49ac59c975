"""Evaluation of one run on one split (the input of model comparison); grouping of runs by seed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lmlab.core.card import Card
from lmlab.core.score import ScoreKind, Summary, TokenScore
from lmlab.data.corpus import Corpus, Layout
from lmlab.data.readers import Example
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.source_scoring import SourceScorer

IGNORED_SETTINGS = frozenset({"log_every", "checkpoint_minutes", "checkpoint_steps"})
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
    def config(self) -> dict[str, Any]: ...
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
    model: ScorableModel, corpus: Corpus, split: str, progress: ProgressCallback | None
) -> SplitEvaluation:
    """Score every text of the split; only a few numbers per text are kept."""
    totals, tokens, characters, unknown = [], [], [], 0
    kind: ScoreKind = "exact"
    scorer = scorer_for(model, corpus, progress)
    for score in scorer.score_examples(corpus.split(split), per_token=False):
        totals.append(score.total)
        tokens.append(score.tokens)
        characters.append(score.characters)
        unknown += score.unknown
        kind = score.kind
    summary = Summary(
        total=math.fsum(totals),
        tokens=sum(tokens),
        characters=sum(characters),
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
    config = {key: v for key, v in model.config.items() if key not in ("seed", "lmlab", "format")}
    dropped = IGNORED_SETTINGS | {"seed"}
    training = {k: v for k, v in config.get("training", {}).items() if k not in dropped}
    # Compare the corpus by content, not by the spelling of its path.
    corpus = config.get("corpus", {}).get("fingerprint")
    tokens = tokenization(model)
    key = config | {"training": training, "corpus": corpus, "tokens": tokens}
    return json.dumps(key, sort_keys=True, default=str)


def tokenization(model: ScorableModel) -> str:
    """Kind, size and fingerprint of a tokenizer: equal where the tokenisation is."""
    tokenizer = model.tokenizer
    return f"{tokenizer.kind}, {tokenizer.vocabulary.size} tokens ({tokenizer.fingerprint()[:8]})"


def training_seconds(run: Path) -> float | None:
    """Training time in seconds from the run's last metrics line, if there is one."""
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return float(json.loads(lines[-1])["seconds"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
