"""Checks of the predictions: against n-grams (Kneser-Ney), and what they depend on."""

from __future__ import annotations

from typing import NamedTuple

from lmlab.core.protocols import LogProb
from lmlab.diagnosis.findings import Finding, leak_finding
from lmlab.diagnosis.measurements import BIGRAM, TRIGRAM, ngram_loss, sample_loss
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence

TOLERANCE = 0.02
"""Tolerance in nats above the n-gram: 2 % of perplexity."""
COMPARABLE_KINDS = ("exact", "bound")
"""Score kinds comparable with an n-gram loss and quick to measure."""


class BaselineLosses(NamedTuple):
    """Nats per token on the same held-out text, of the model and of two n-grams."""

    model: float
    bigram: float
    trigram: float
    where: str


def worse_than_ngram(evidence: RunEvidence) -> Finding | None:
    """The held-out loss exceeds that of a Kneser-Ney n-gram of the same training tokens."""
    losses = _losses(evidence)
    best, name = min((losses.bigram, BIGRAM), (losses.trigram, TRIGRAM))
    if losses.model <= best + TOLERANCE:
        return None
    # Worse than a bigram, the network has learnt next to nothing.
    serious = losses.model > losses.bigram + TOLERANCE
    return Finding(
        name="worse than an n-gram",
        severity="serious" if serious else "mild",
        observed=f"{losses.model:.3f} nats per token on {losses.where}; an interpolated Kneser-Ney "
        f"{name} fitted on the same training tokens has {best:.3f}"
        + (f" (the bigram {losses.bigram:.3f})" if name != BIGRAM else ""),
        why="counts of two or three tokens predict the text better, so the network is not trained "
        "enough, too small, or misconfigured",
        suggestions=(
            "longer training: compare the curve with the levels in the figure",
            "a larger size, or another learning rate",
            "the n-gram itself: lmlab train ngram",
        ),
        numbers={"loss": losses.model, BIGRAM: losses.bigram, TRIGRAM: losses.trigram},
    )


def _losses(evidence: RunEvidence) -> BaselineLosses:
    """Losses at the curve's best point, or measured if the curve is missing or unnormalised."""
    kind = evidence.card.kind
    if kind not in COMPARABLE_KINDS:
        raise MissingEvidence(f"its score is of kind {kind}, which no n-gram's loss compares with")
    if evidence.card.baseline == "uniform":
        raise NotApplicable("it is built to see no context")
    best = _best_loss(evidence)
    if best is not None and evidence.normalised:
        levels = evidence.levels
        split = evidence.history.split or "held-out text"
        return BaselineLosses(best, levels[BIGRAM].value, levels[TRIGRAM].value, split)
    if not isinstance(evidence.system, LogProb):
        raise NotApplicable("it gives texts no log-probability")
    sample = evidence.sample
    bigram, trigram = (ngram_loss(evidence, sample, order) for order in (2, 3))
    tokens = sum(batch.count for batch in sample)
    name = evidence.texts.split or "train"
    return BaselineLosses(
        sample_loss(evidence.system, evidence), bigram, trigram, f"{tokens:,} {name} tokens"
    )


def _best_loss(evidence: RunEvidence) -> float | None:
    """The best loss of the curve; None without a curve."""
    try:
        best = evidence.history.best
    except MissingEvidence:
        return None
    return None if best is None else best.loss


def causality(evidence: RunEvidence) -> Finding | None:
    """A prediction depends on something that it must not see."""
    return leak_finding(evidence.causality)
