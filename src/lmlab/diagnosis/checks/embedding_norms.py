"""Embedding norm checks: norms that carry information, norms that drift."""

from __future__ import annotations

from lmlab.core.protocols import LogProb
from lmlab.diagnosis.findings import Finding
from lmlab.diagnosis.measurements import (
    UNIGRAM,
    epochs_seen,
    norm_frequency_correlation,
    sample_loss,
    with_equal_norms,
)
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence
from lmlab.training.weight_statistics import token_vectors

NORM_COST_SHARE = 1.0
"""Loss increase by equal norms, relative to the model's gain over the unigram model.

Above one, the norms carry more information than the context.
"""
MIN_COST = 0.3
"""Minimum loss increase in nats; healthy runs lose 0 to 0.2."""
MIN_CORRELATION = 0.4
"""Minimum |correlation| of norm and log frequency; below it, norms carry something else."""
NORM_DRIFT = 1.25
"""Growth of the mean norm after the best held-out loss: a quarter, without improvement."""


def embedding_norms_carry_information(evidence: RunEvidence) -> Finding | None:
    """Equalising all embedding norms ruins the model: norms carry information."""
    system = evidence.system
    tables = token_vectors(system)
    if not tables:
        raise NotApplicable("it has no embedding per token")
    if not isinstance(system, LogProb) or not evidence.normalised:
        raise NotApplicable("its losses are not those of a distribution over texts")
    # Unigram frequencies are learnt first: early in the first epoch there is little else.
    if epochs_seen(evidence) < 1:
        return None
    unigram = evidence.levels[UNIGRAM].value
    loss = sample_loss(system, evidence)
    costs = {name: sample_loss(with_equal_norms(system, name), evidence) - loss for name in tables}
    name = max(costs, key=lambda table: costs[table])
    gain = unigram - loss
    correlation = norm_frequency_correlation(tables[name].detach(), evidence.texts.train)
    # A model worse than the unigram baseline has other problems.
    if gain <= 0 or abs(correlation) < MIN_CORRELATION:
        return None
    if costs[name] <= max(MIN_COST, NORM_COST_SHARE * gain):
        return None
    return Finding(
        name="embedding norms carry information",
        severity="mild",
        observed=f"with all rows of {name} set to one norm the loss rises by "
        f"{costs[name]:.3f} nats, while context has gained {gain:.3f} over the "
        f"unigram model; norms correlate by {correlation:+.2f} with log frequency",
        why="a norm can only encode how frequent its token is, and what the norm encodes the "
        "direction does not",
        suggestions=(
            "an emission or embedding on the sphere, where only directions count",
            "--set weight_decay=0.01",
            "longer training: frequencies are learnt first",
        ),
        numbers={"cost": costs[name], "gain": gain, "correlation": correlation},
    )


def embedding_norms_drift(evidence: RunEvidence) -> Finding | None:
    """Embedding norms keep growing after the held-out loss has stopped falling."""
    if not evidence.by_gradient:
        raise NotApplicable("it was not trained by gradient descent")
    history = evidence.history
    best = evidence.best_validation
    windows = [window for window in history.train if window.embedding_norms]
    if not windows:
        raise MissingEvidence("its metrics have no embedding norms")
    then = min(windows, key=lambda window: abs(window.step - best.step)).embedding_norms
    now = windows[-1].embedding_norms
    growth = {name: now[name] / then[name] for name in now if then.get(name)}
    name = max(growth, key=lambda table: growth[table], default="")
    if not name or growth[name] <= NORM_DRIFT:
        return None
    return Finding(
        name="embedding norms drift",
        severity="mild",
        observed=f"since the best held-out loss at step {best.step} the mean norm of the rows "
        f"of {name} grew from {then[name]:.2f} to {now[name]:.2f}, and the loss did "
        "not fall",
        why="larger norms make the model more confident, not better",
        suggestions=("--set weight_decay=0.01", "--set patience=3", "vectors on the sphere"),
        numbers={"growth": growth[name], "then": then[name], "now": now[name]},
    )
