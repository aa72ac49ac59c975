"""Loss checks: divergence, early stop, no learning, overfitting, reference band, true entropy."""

from __future__ import annotations

from lmlab.diagnosis.findings import Finding
from lmlab.diagnosis.measurements import ENTROPY, UNIFORM, UNIGRAM, epochs_seen
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence

MIN_EPOCHS = 2.0
"""Epochs before a run should beat the context-free baseline."""
MIN_GAIN = 0.05
"""Minimum gain over the context-free baseline in nats: 5 % of perplexity."""
BAND_TOLERANCE = 0.5
"""Tolerance above the reference band, relative to its width, for other seeds and sizes."""
BAND_TOLERANCE_NATS = 0.05
"""Absolute tolerance in nats, if all reference runs end at the same loss."""
BELOW_TRUTH = 0.02
"""Tolerance in nats below the true entropy: sampling error of a few thousand tokens."""
OVERFITTING_RISE = 0.05
"""Minimum rise above the best held-out loss, 5 % of perplexity; less is noise."""
OVERFITTING_GAP = 0.5
"""Minimum gap of training below held-out loss in nats; dropout makes it smaller."""


def loss_not_finite(evidence: RunEvidence) -> Finding | None:
    """Divergence: the loss or gradient is not finite."""
    history = evidence.history
    if not history.not_finite:
        return None
    return Finding(
        name="loss not finite",
        severity="serious",
        observed=f"training stopped after step {history.steps}, because the loss or the "
        "gradient was not finite",
        why="the weights were diverging; the saved ones are those of the last validation "
        "before it, if there was one",
        suggestions=_stabilising_suggestions(evidence),
        numbers={"steps": float(history.steps)},
    )


def _stabilising_suggestions(evidence: RunEvidence) -> tuple[str, ...]:
    rate, clip = evidence.settings.learning_rate, evidence.settings.grad_clip
    suggestions = [f"--set learning_rate={rate / 10:g}"]
    suggestions += ["--set grad_clip=1"] if not 0 < clip <= 1 else []
    suggestions += ["--set warmup_steps=100"] if not evidence.settings.warmup_steps else []
    return tuple(suggestions)


def stopped_early(evidence: RunEvidence) -> Finding | None:
    """Training ended before its budget, and not by early stopping."""
    history = evidence.history
    if history.not_finite or not evidence.by_gradient:
        return None
    share = _budget_share(evidence)
    if share is None or share >= 1 or _out_of_patience(evidence):
        return None
    return Finding(
        name="interrupted",
        severity="mild",
        observed=f"training ended at step {history.steps}, {share:.0%} of its budget",
        why="it was stopped early, so its scores are not those of a finished run",
        suggestions=("the same command with --resume",),
        numbers={"steps": float(history.steps), "share": share},
    )


def _budget_share(evidence: RunEvidence) -> float | None:
    """Share of the budget used according to the metrics; None for a time budget."""
    settings, history = evidence.settings, evidence.history
    if settings.minutes:
        return None
    shares = [history.steps / settings.steps] if settings.steps else []
    if settings.epochs and history.train:
        shares.append(history.train[-1].epoch / settings.epochs)
    return max(shares, default=None)


def _out_of_patience(evidence: RunEvidence) -> bool:
    patience, history = evidence.settings.patience, evidence.history
    best = history.best
    if not patience or best is None:
        return False
    return sum(point.step > best.step for point in history.held_out) >= patience


def nothing_learned(evidence: RunEvidence) -> Finding | None:
    """No better than a model without context (unigram or uniform)."""
    epochs, best = epochs_seen(evidence), evidence.best_validation
    if evidence.by_gradient and epochs < MIN_EPOCHS:
        return None
    level = evidence.levels[UNIFORM if evidence.card.baseline == "uniform" else UNIGRAM]
    if best.loss < level.value - MIN_GAIN:
        return None
    return Finding(
        name="no gain over the context-free baseline",
        severity="serious",
        observed=f"the best held-out loss is {best.loss:.3f} nats after {epochs:.1f} epochs; the "
        f"{level.name} model, which sees no context, has {level.value:.3f}",
        why="it does no better than counts of single tokens",
        suggestions=(
            "ten times the learning rate, if the training loss falls too slowly; a tenth, if it "
            "jumps",
            "longer training",
            "overfit a few dozen sentences: a system that can't memorise those has a bug",
        ),
        numbers={"loss": best.loss, level.name: level.value, "epochs": epochs},
    )


def above_reference_band(evidence: RunEvidence) -> Finding | None:
    """Above the reference band of healthy runs on this corpus."""
    band, history = evidence.reference_band, evidence.history
    if band is None or evidence.card.baseline == "uniform":
        raise NotApplicable("there are no reference runs on this corpus with these tokens")
    if not history.held_out:
        raise MissingEvidence("there was no validation during training")
    last = history.held_out[-1]
    best = min(point.loss for point in history.held_out)
    expected = band.at(last.tokens if evidence.by_gradient else band.points[-1][0])
    if expected is None:
        return None
    low, high = expected
    allowed = high + max(BAND_TOLERANCE * (high - low), BAND_TOLERANCE_NATS)
    if best <= allowed:
        return None
    return Finding(
        name="above the reference band",
        severity="mild",
        observed=f"{best:.3f} nats after {last.tokens:,.0f} tokens, where healthy runs on "
        f"{band.corpus} ({', '.join(band.systems)}) have {low:.3f} to {high:.3f}",
        why="at the same amount of text, systems of this kind are better by now",
        suggestions=(
            "the default learning rate and batch size",
            "a larger size or width",
            "longer training",
        ),
        numbers={"loss": best, "tokens": last.tokens, "low": low, "high": high},
    )


def below_true_entropy(evidence: RunEvidence) -> Finding | None:
    """Loss below the entropy of the true distribution, which is impossible."""
    best = evidence.best_validation
    if ENTROPY not in evidence.levels:
        raise NotApplicable("the true distribution of this corpus is not known")
    floor = evidence.levels[ENTROPY].value
    if best.loss >= floor - BELOW_TRUTH:
        return None
    return Finding(
        name="below the true entropy",
        severity="serious",
        observed=f"{best.loss:.3f} nats on held-out text, on which the true distribution has "
        f"{floor:.3f}",
        why="no model is better than the true distribution unless it sees its targets or its "
        "probabilities sum to more than one",
        suggestions=(
            "run lmlab conformance on this system: it tests both",
            "look for held-out text in the training text",
        ),
        numbers={"loss": best.loss, "entropy": floor},
    )


def overfitting(evidence: RunEvidence) -> Finding | None:
    """Overfitting: the held-out loss rises while the training loss falls."""
    history, best = evidence.history, evidence.best_validation
    last = history.held_out[-1]
    then, now = _train_loss_near(evidence, best.tokens), _train_loss_near(evidence, last.tokens)
    if then is None or now is None:
        raise MissingEvidence("its metrics have no training loss")
    rise = last.loss - best.loss
    gap = last.loss - now if evidence.losses_comparable else 0.0
    rising = rise > OVERFITTING_RISE and now < then
    # If the training loss has not fallen, nothing was memorised.
    if now >= history.train[0].loss or (not rising and gap <= OVERFITTING_GAP):
        return None
    retained = "the last weights are kept, as there is no validation split to select by"
    if history.split == "validation":
        retained = "the weights of the best validation are kept"
    return Finding(
        name="overfitting",
        severity="mild"
        if history.split == "validation" and gap <= 2 * OVERFITTING_GAP
        else "serious",
        observed=f"the {history.split} loss was best at step {best.step} ({best.loss:.3f}) and "
        f"ended "
        f"at {last.loss:.3f}, with {now:.3f} on the training text",
        why=f"it now memorises the training text; {retained}",
        suggestions=(
            f"--set patience=3, or about {max(best.tokens, 1):,.0f} tokens of training",
            "more dropout or weight decay, where the system has them",
            "more text, or a smaller size",
        ),
        numbers={"best": best.loss, "last": last.loss, "train": now, "rise": rise, "gap": gap},
    )


def _train_loss_near(evidence: RunEvidence, tokens: float) -> float | None:
    """Training loss around a point: over the epoch, or the tenth of training, before it."""
    history = evidence.history
    span = max(history.tokens / 10, history.train[0].count if history.train else 0.0)
    return history.train_loss(tokens - span, tokens)
