"""One run on one split: what a comparison is made of."""

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
from lmlab.core.score import Summary, TokenScore
from lmlab.core.score_kind import ScoreKind
from lmlab.data.corpus import Corpus, Layout
from lmlab.data.readers import Example
from lmlab.scoring.scorer import Scorer
from lmlab.scoring.source_scoring import SourceScorer

IGNORED_SETTINGS = frozenset({"log_every", "checkpoint_minutes", "checkpoint_steps"})
"""Settings of a training that change nothing in what comes of it."""

ProgressCallback = Callable[[str, int], None]
"""Told the name of a run and how many more of its tokens are scored."""


class ScorableModel(Protocol):
    """What a comparison asks of a trained model; `lmlab.training.run_folder.Model` is one."""

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
    """One run on the split."""

    model: ScorableModel
    summary: Summary
    totals: NDArray[np.float64]
    """(N,) log-probability of each text."""
    tokens: NDArray[np.float64]
    characters: NDArray[np.float64]


def scorer_for(
    model: ScorableModel, corpus: Corpus, progress: ProgressCallback | None = None
) -> Scorer | SourceScorer:
    """The scorer of a model as it was trained, texts cut where the corpus cuts them.

    On a corpus of pairs each text is scored given its source.
    """
    cut = corpus.layout.cut
    told = None if progress is None else lambda tokens: progress(model.path.name, tokens)
    if corpus.layout.kind == "pairs":
        return SourceScorer(
            model.system,
            model.tokenizer,
            model.effective_source_tokenizer,
            model.layout,
            cut=cut,
            progress=told,
        )
    return Scorer(
        model.system, model.tokenizer, model.layout, cut=cut, carry=cut is None, progress=told
    )


def evaluate_split(
    model: ScorableModel, corpus: Corpus, split: str, progress: ProgressCallback | None
) -> SplitEvaluation:
    """Score every text of the split; of each only some numbers are kept."""
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
    """The tokens of some texts with their log-probabilities."""
    return [score.per_token for score in scorer_for(model, corpus).score_examples(examples)]


def group_by_seed(measured: Sequence[SplitEvaluation]) -> dict[str, list[SplitEvaluation]]:
    """Runs that differ only in their seed, together, in the order of the first of each."""
    groups: dict[str, list[SplitEvaluation]] = {}
    for each in measured:
        groups.setdefault(model_identity(each.model), []).append(each)
    return groups


def model_identity(model: ScorableModel) -> str:
    """All of a run's config but for seeds and what changes nothing."""
    config = {key: v for key, v in model.config.items() if key not in ("seed", "lmlab", "format")}
    dropped = IGNORED_SETTINGS | {"seed"}
    training = {k: v for k, v in config.get("training", {}).items() if k not in dropped}
    # The text itself decides, not how its path was written.
    corpus = config.get("corpus", {}).get("fingerprint")
    tokens = tokenization(model)
    key = config | {"training": training, "corpus": corpus, "tokens": tokens}
    return json.dumps(key, sort_keys=True, default=str)


def tokenization(model: ScorableModel) -> str:
    """Kind, size and fingerprint of a tokeniser: equal where the tokens are."""
    tokenizer = model.tokenizer
    return f"{tokenizer.kind}, {tokenizer.vocabulary.size} tokens ({tokenizer.fingerprint()[:8]})"


def training_seconds(run: Path) -> float | None:
    """The seconds of training that the run's last line of metrics tells, if it has any."""
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return float(json.loads(lines[-1])["seconds"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
