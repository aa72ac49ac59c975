"""Learning rate: too high, too low, and a gradient that is always clipped."""

from __future__ import annotations

from statistics import median

from lmlab.diagnosis.findings import Finding
from lmlab.diagnosis.measurements import epochs_seen
from lmlab.diagnosis.run_evidence import (
    MissingEvidence,
    NotApplicable,
    RunEvidence,
)
from lmlab.diagnosis.training_history import TrainingWindow

MAX_SEGMENTS = 10
"""Pieces of the training whose mean losses are compared; a piece is long enough to be calm."""
MIN_SEGMENT_TOKENS = 1000
"""Tokens of a piece at least: the mean of fewer moves by a tenth of a nat by itself."""
LOSS_JUMP = 0.2
"""Nats of a piece above the best before it that count as a jump: a fifth of perplexity. Batches
hold sentences of like length, and pieces of a healthy training differ by up to 0.15 by chance."""
MIN_JUMPS = 2
"""Jumps among the ten pieces; one happens to a healthy training as well."""
HUGE_UPDATE_RATIO = 0.5
"""‖change‖ / ‖weights‖ of a single step: beyond half, the first weights are thrown away."""
LARGE_UPDATE_RATIO = 0.03
"""The same as the usual step: beyond it, all weights are replaced every thirty steps. Healthy
runs of ours have 0.002 to 0.01, and at ten times their rate still below 0.02."""
SMALL_UPDATE_RATIO = 2e-3
"""Below it, a loss that falls in a straight line could fall faster."""
TINY_UPDATE_RATIO = 1e-4
"""Below it, a step changes next to nothing …"""
MIN_MOVEMENT = 0.05
"""… and all steps together less than a twentieth of the weights: nothing has really moved."""
STRAIGHT_LINE_RATIO = 0.7
"""Fall in the second half of the training over that in the first; a curve that flattens, as
healthy ones do, has less than a half."""
MIN_LOSS_FALL = 0.02
"""Nats of the second half's fall that are more than noise."""
CLIPPED_SHARE = 0.9
"""Share of steps that were clipped …"""
CLIPPED_FACTOR = 3.0
"""… and what the usual gradient was shortened by: a little more than the clip is only a steady
step, three times it hides how far the goal is."""
MIN_WINDOWS = 10
"""Lines of metrics that such a share needs."""


def learning_rate_too_high(evidence: RunEvidence) -> Finding | None:
    """The loss jumps, or steps are as large as the weights."""
    windows = _windows(evidence)
    ratios = [w.update_ratio for w in windows if w.update_ratio is not None]
    rises = _rises(_pieces(windows))
    jumps = [rise for rise in rises if rise > LOSS_JUMP]
    largest, usual = max(ratios, default=0.0), median(ratios[1:] or [0.0])
    signs = []
    if len(jumps) >= MIN_JUMPS:
        signs.append(
            f"the training loss rose {len(jumps)} times by more than {LOSS_JUMP} nats above "
            f"where it "
            f"had been, at most by {max(jumps):.2f}"
        )
    if largest > HUGE_UPDATE_RATIO:
        signs.append(f"a single step changed the weights by {largest:.0%} of their length")
    if usual > LARGE_UPDATE_RATIO:
        signs.append(f"a usual step changes the weights by {usual:.1%} of their length")
    if not signs:
        return None
    rate = float(evidence.settings.get("learning_rate", 0.0))
    return Finding(
        name="learning rate too high",
        severity="serious" if jumps else "mild",
        observed="; ".join(signs) + f"; the learning rate is {rate:g}",
        why="steps that overshoot undo what others have learnt, and the loss ends higher than it "
        "need",
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
            "usual step": usual,
        },
    )


def learning_rate_too_low(evidence: RunEvidence) -> Finding | None:
    """Steps so small that nothing moves, or a loss that falls in a straight line by small steps."""
    windows = _windows(evidence)
    ratio = _ratio_at_peak(windows)
    if ratio is None:
        raise MissingEvidence("its metrics do not tell how far a step moved the weights")
    moved = ratio * evidence.history.steps
    first, second = _falls(_pieces(windows))
    straight = (
        second > MIN_LOSS_FALL
        and second >= STRAIGHT_LINE_RATIO * first
        and ratio < SMALL_UPDATE_RATIO
    )
    still = ratio < TINY_UPDATE_RATIO and moved < MIN_MOVEMENT
    if not still and not (straight and epochs_seen(evidence) >= 1):
        return None
    rate = float(evidence.settings.get("learning_rate", 0.0))
    line = (
        f"; the training loss fell by {second:.3f} nats in the second half of the training and by "
        f"{first:.3f} in the first, in a straight line"
        if straight
        else ""
    )
    return Finding(
        name="learning rate too low",
        severity="serious" if still else "mild",
        observed=f"a usual step changes the weights by {ratio:.1e} of their length, {moved:.1%} "
        f"in all "
        f"{evidence.history.steps} steps{line}; the learning rate is {rate:g}",
        why="the same loss could be had in far fewer steps, and a lower one in as many",
        suggestions=(
            f"--set learning_rate={rate * (100 if still else 5):g}",
            "longer training, if the rate is meant to be so low",
        ),
        numbers={
            "learning rate": rate,
            "usual step": ratio,
            "movement": moved,
            "fall of the first half": first,
            "fall of the second half": second,
        },
    )


def gradient_always_clipped(evidence: RunEvidence) -> Finding | None:
    """Nearly every gradient is longer than the clip allows."""
    clip = float(evidence.settings.get("grad_clip") or 0.0)
    norms = [w.gradient_norm for w in _windows(evidence) if w.gradient_norm is not None]
    if not clip or len(norms) < MIN_WINDOWS:
        return None
    share = sum(norm > clip for norm in norms) / len(norms)
    usual = median(norms)
    if share < CLIPPED_SHARE or usual < CLIPPED_FACTOR * clip:
        return None
    return Finding(
        name="gradient always clipped",
        severity="mild",
        observed=f"{share:.0%} of the gradients were longer than clip={clip:g}; half of them "
        f"longer "
        f"than {usual:.3g}",
        why="every step is then as long as every other, however near the goal is; and a gradient "
        "that large may be one that explodes",
        suggestions=(
            f"--set grad_clip={2 * usual:.2g}",
            "a lower learning rate",
            "--set warmup_steps=100",
        ),
        numbers={"share": share, "grad_clip": clip, "median norm": usual},
    )


def _windows(evidence: RunEvidence) -> tuple[TrainingWindow, ...]:
    if not evidence.by_gradient:
        raise NotApplicable("it was not trained by gradient")
    windows = evidence.history.train
    if not windows:
        raise MissingEvidence("its metrics tell no training loss")
    return windows


def _pieces(windows: tuple[TrainingWindow, ...]) -> list[float]:
    """Mean losses of up to ten pieces of equal length; none where there is too little to cut up.

    The first line of the metrics is of a single step, and left out.
    """
    rest = windows[1:] if len(windows) > 1 and windows[0].step == 1 else windows
    tokens = sum(window.count for window in rest)
    count = int(min(MAX_SEGMENTS, len(rest), tokens // MIN_SEGMENT_TOKENS))
    if count < 2:
        return []
    totals, sizes = [0.0] * count, [0.0] * count
    seen = 0.0
    for window in rest:
        piece = min(int(count * (seen + window.count / 2) / tokens), count - 1)
        totals[piece] += window.loss * window.count
        sizes[piece] += window.count
        seen += window.count
    return [total / size for total, size in zip(totals, sizes, strict=True) if size]


def _rises(pieces: list[float]) -> list[float]:
    """How far each piece lies above the best before it."""
    lowest = [min(pieces[:end]) for end in range(1, len(pieces))]
    return [now - best for now, best in zip(pieces[1:], lowest, strict=True)]


def _falls(pieces: list[float]) -> tuple[float, float]:
    """What the loss fell by in the first half and in the second; zeros where it can't be told."""
    if len(pieces) < 4:
        return 0.0, 0.0
    middle = len(pieces) // 2
    return pieces[0] - pieces[middle], pieces[middle] - pieces[-1]


def _ratio_at_peak(windows: tuple[TrainingWindow, ...]) -> float | None:
    """The median update ratio of steps at half the highest rate or more: no warm-up, no decay."""
    peak = max((w.learning_rate for w in windows if w.learning_rate is not None), default=0.0)
    ratios = [
        w.update_ratio
        for w in windows
        if w.update_ratio is not None and (w.learning_rate or 0.0) >= peak / 2
    ]
    return median(ratios) if ratios else None
