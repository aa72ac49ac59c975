"""Learning rate checks: too high, too low, gradient always clipped."""

from __future__ import annotations

from statistics import median

from lmlab.diagnosis.findings import Finding, TrainingWindow
from lmlab.diagnosis.measurements import epochs_seen
from lmlab.diagnosis.run_evidence import MissingEvidence, NotApplicable, RunEvidence

MAX_SEGMENTS = 10
"""Segments of training whose mean losses are compared."""
MIN_SEGMENT_TOKENS = 1000
"""Minimum tokens of a segment: means over fewer fluctuate by a tenth of a nat."""
LOSS_JUMP = 0.2
"""Rise above the best earlier segment that counts as a jump: a fifth of perplexity.

Batches hold sentences of similar length, so healthy segments differ by up to 0.15.
"""
MIN_JUMPS = 2
"""Jumps among the ten segments; a healthy run may have one."""
HUGE_UPDATE_RATIO = 0.5
"""Maximum ‖update‖ / ‖weights‖ of one step: above half, the initial weights are lost."""
LARGE_UPDATE_RATIO = 0.03
"""The same for the median step: above it, weights are replaced every thirty steps.

Healthy runs have 0.002 to 0.01, and at ten times the learning rate still below 0.02.
"""
SMALL_UPDATE_RATIO = 2e-3
"""Below this ratio, a loss that falls linearly could fall faster."""
TINY_UPDATE_RATIO = 1e-4
"""Below this ratio, a step changes next to nothing …"""
MIN_MOVEMENT = 0.05
"""… and all steps together less than a twentieth of the weights."""
STRAIGHT_LINE_RATIO = 0.7
"""Decrease in the second half of training relative to the first; healthy curves have < 0.5."""
MIN_LOSS_FALL = 0.02
"""Minimum decrease of the second half in nats, above noise."""
CLIPPED_SHARE = 0.9
"""Share of clipped steps …"""
CLIPPED_FACTOR = 3.0
"""… and the median norm relative to the clip: slightly above is harmless, three times is not."""
MIN_WINDOWS = 10
"""Minimum lines of metrics for such a share."""


def learning_rate_too_high(evidence: RunEvidence) -> Finding | None:
    """The loss jumps, or updates are as large as the weights."""
    windows = _windows(evidence)
    ratios = [w.update_ratio for w in windows if w.update_ratio is not None]
    rises = _loss_rises(_segment_losses(windows))
    jumps = [rise for rise in rises if rise > LOSS_JUMP]
    largest, typical = max(ratios, default=0.0), median(ratios[1:] or [0.0])
    symptoms = []
    if len(jumps) >= MIN_JUMPS:
        symptoms.append(
            f"the training loss rose {len(jumps)} times by more than {LOSS_JUMP} nats above "
            f"where it "
            f"had been, at most by {max(jumps):.2f}"
        )
    if largest > HUGE_UPDATE_RATIO:
        symptoms.append(f"a single step changed the weights by {largest:.0%} of their norm")
    if typical > LARGE_UPDATE_RATIO:
        symptoms.append(f"the median step changes the weights by {typical:.1%} of their norm")
    if not symptoms:
        return None
    rate = evidence.settings.learning_rate
    return Finding(
        name="learning rate too high",
        severity="serious" if jumps else "mild",
        observed="; ".join(symptoms) + f"; the learning rate is {rate:g}",
        why="steps that overshoot undo what others have learnt, and the final loss is higher "
        "than it need be",
        suggestions=(
            f"--set learning_rate={rate / 10:g}",
            "--set warmup_steps=100",
            "--set schedule=cosine",
        ),
        numbers={
            "learning rate": rate,
            "jumps": float(len(jumps)),
            "largest rise": max(rises, default=0.0),
            "largest step": largest,
            "usual step": typical,
        },
    )


def learning_rate_too_low(evidence: RunEvidence) -> Finding | None:
    """Updates too small to change the weights, or a loss that falls linearly by small updates."""
    windows = _windows(evidence)
    ratio = _ratio_at_peak(windows)
    if ratio is None:
        raise MissingEvidence("its metrics have no update ratios")
    movement = ratio * evidence.history.steps
    first, second = _loss_falls(_segment_losses(windows))
    linear = (
        second > MIN_LOSS_FALL
        and second >= STRAIGHT_LINE_RATIO * first
        and ratio < SMALL_UPDATE_RATIO
    )
    frozen = ratio < TINY_UPDATE_RATIO and movement < MIN_MOVEMENT
    if not frozen and not (linear and epochs_seen(evidence) >= 1):
        return None
    rate = evidence.settings.learning_rate
    trend = (
        f"; the training loss fell by {second:.3f} nats in the second half of the training and by "
        f"{first:.3f} in the first, in a straight line"
        if linear
        else ""
    )
    return Finding(
        name="learning rate too low",
        severity="serious" if frozen else "mild",
        observed=f"a usual step changes the weights by {ratio:.1e} of their length, {movement:.1%} "
        f"in all "
        f"{evidence.history.steps} steps{trend}; the learning rate is {rate:g}",
        why="the same loss could be reached in far fewer steps, and a lower one in as many",
        suggestions=(
            f"--set learning_rate={rate * (100 if frozen else 5):g}",
            "longer training, if the learning rate is meant to be so low",
        ),
        numbers={
            "learning rate": rate,
            "usual step": ratio,
            "movement": movement,
            "fall of the first half": first,
            "fall of the second half": second,
        },
    )


def gradient_always_clipped(evidence: RunEvidence) -> Finding | None:
    """Nearly every gradient exceeds the clipping norm."""
    clip = evidence.settings.grad_clip
    norms = [w.gradient_norm for w in _windows(evidence) if w.gradient_norm is not None]
    if not clip or len(norms) < MIN_WINDOWS:
        return None
    share = sum(norm > clip for norm in norms) / len(norms)
    typical = median(norms)
    if share < CLIPPED_SHARE or typical < CLIPPED_FACTOR * clip:
        return None
    return Finding(
        name="gradient always clipped",
        severity="mild",
        observed=f"{share:.0%} of the gradient norms were above grad_clip={clip:g}; the "
        f"median is {typical:.3g}",
        why="every step then has the same length, however near the optimum; and a gradient "
        "that large may be exploding",
        suggestions=(
            f"--set grad_clip={2 * typical:.2g}",
            "a lower learning rate",
            "--set warmup_steps=100",
        ),
        numbers={"share": share, "grad_clip": clip, "median norm": typical},
    )


def _windows(evidence: RunEvidence) -> tuple[TrainingWindow, ...]:
    if not evidence.by_gradient:
        raise NotApplicable("it was not trained by gradient descent")
    windows = evidence.history.train
    if not windows:
        raise MissingEvidence("its metrics have no training loss")
    return windows


def _segment_losses(windows: tuple[TrainingWindow, ...]) -> list[float]:
    """Mean losses of up to ten equal segments; empty if there is too little data.

    The first line of the metrics covers a single step and is skipped.
    """
    rest = windows[1:] if len(windows) > 1 and windows[0].step == 1 else windows
    tokens = sum(window.count for window in rest)
    count = int(min(MAX_SEGMENTS, len(rest), tokens // MIN_SEGMENT_TOKENS))
    if count < 2:
        return []
    totals, sizes = [0.0] * count, [0.0] * count
    tokens_seen = 0.0
    for window in rest:
        segment = min(int(count * (tokens_seen + window.count / 2) / tokens), count - 1)
        totals[segment] += window.loss * window.count
        sizes[segment] += window.count
        tokens_seen += window.count
    return [total / size for total, size in zip(totals, sizes, strict=True) if size]


def _loss_rises(segment_losses: list[float]) -> list[float]:
    """Rise of each segment above the best before it."""
    lowest = [min(segment_losses[:end]) for end in range(1, len(segment_losses))]
    return [loss - best for loss, best in zip(segment_losses[1:], lowest, strict=True)]


def _loss_falls(segment_losses: list[float]) -> tuple[float, float]:
    """Decrease of the loss in the first and second half; zeros if unknown."""
    if len(segment_losses) < 4:
        return 0.0, 0.0
    middle = len(segment_losses) // 2
    return segment_losses[0] - segment_losses[middle], segment_losses[middle] - segment_losses[-1]


def _ratio_at_peak(windows: tuple[TrainingWindow, ...]) -> float | None:
    """Median update ratio of steps at half the peak learning rate or more: no warm-up, no decay."""
    peak = max((w.learning_rate for w in windows if w.learning_rate is not None), default=0.0)
    ratios = [
        w.update_ratio
        for w in windows
        if w.update_ratio is not None and (w.learning_rate or 0.0) >= peak / 2
    ]
    return median(ratios) if ratios else None
