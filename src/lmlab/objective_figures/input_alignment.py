"""Alignment of an objective's inputs with the clean text: which tokens are shown, which masked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class InputAlignment:
    """Clean-text position of each input."""

    positions: tuple[int, ...]
    """Clean-text position of each input, -1 if it is no token of the text."""
    shift: int | None
    """Input t corresponds to position t + shift, shown or masked; None if inputs are reordered."""

    def answers(self, masked: Mapping[int, Set[int]]) -> frozenset[int]:
        """Inputs that show a token to all positions but the one that predicts it.

        `masked` maps each target position of the clean text to the inputs masked from its
        prediction.
        """
        pairs = enumerate(self.positions)
        return frozenset(t for t, p in pairs if p in masked and t in masked[p])

    def masked_positions(self, masked: Mapping[int, Set[int]], length: int) -> frozenset[int]:
        """Clean-text positions that are predicted without being visible to the prediction.

        Empty if every token is both input and target (left to right, permuted orders): then only
        the attention mask hides, and no token stands out.
        """
        inputs: dict[int, set[int]] = {}
        for t, position in enumerate(self.positions):
            inputs.setdefault(position, set()).add(t)
        targets = {position for position in masked if 0 <= position < length}
        if (
            len(targets) >= length - 1
            and sum(position in inputs for position in targets) >= len(targets) - 1
        ):
            return frozenset()
        return frozenset(p for p in targets if inputs.get(p, set()) <= set(masked[p]))


def align_inputs(
    inputs: Sequence[int],
    clean: Sequence[int],
    *,
    target_positions: Sequence[int] | None,
    clean_positions: Sequence[int] | None,
    positions: Sequence[int] | None,
    vocabulary: Vocabulary,
) -> InputAlignment:
    """Align inputs with the clean text: position by position if that fits, else by common spans.

    `target_positions` are the clean-text positions of all targets, `clean_positions` those of the
    targets at these inputs.
    """
    targets = {position for position in target_positions or () if position >= 0}
    for shift in (0, 1):
        aligned = _identity_alignment(inputs, clean, shift, targets, vocabulary)
        if aligned is not None:
            return InputAlignment(positions=aligned, shift=shift)
    aligned = _by_position(inputs, clean, positions, targets)
    if aligned is None:
        aligned = _by_spans(inputs, clean, clean_positions)
    return InputAlignment(positions=aligned, shift=None)


def teacher_forced_inputs(inputs: Sequence[int], targets: Sequence[int] | None) -> frozenset[int]:
    """Inputs that are the target of the position before them: teacher forcing."""
    if targets is None:
        return frozenset()
    return frozenset(
        t
        for t in range(1, len(inputs))
        if targets[t - 1] != NO_TARGET and targets[t - 1] == inputs[t]
    )


def inputs_from_other_text(
    inputs: Sequence[int], alignment: InputAlignment, other_text: Sequence[int]
) -> frozenset[int]:
    """Inputs inside a span of at least two tokens from another text."""
    unaligned = [id if p < 0 else -1 for id, p in zip(inputs, alignment.positions, strict=True)]
    positions = _by_spans(unaligned, other_text, None)
    return frozenset(
        t
        for t, p in enumerate(positions)
        if p >= 0
        and any(
            0 <= neighbour < len(positions) and positions[neighbour] == p + neighbour - t
            for neighbour in (t - 1, t + 1)
        )
    )


def _identity_alignment(
    inputs: Sequence[int],
    clean: Sequence[int],
    shift: int,
    targets: set[int],
    vocabulary: Vocabulary,
) -> tuple[int, ...] | None:
    """Identity alignment: each input is the token at its position, or replaces a target.

    None if more tokens differ than agree: then they have rather been moved.
    """
    if not inputs or len(inputs) + shift > len(clean):
        return None
    # An early end token ends another text, unless it is the only replaced token.
    frame = (vocabulary.start, vocabulary.end, vocabulary.pad)
    same_length = len(inputs) + shift == len(clean)
    positions = []
    for t, id in enumerate(inputs):
        same = id == clean[t + shift]
        if not same and (t + shift not in targets or (id in frame and not same_length)):
            return None
        positions.append(t + shift if same else -1)
    words = [(id, t) for id, t in zip(inputs, positions, strict=True) if id not in frame]
    agreeing = sum(t >= 0 for _, t in words)
    changed = len(words) - agreeing - sum(replaces_words(id, vocabulary) for id, _ in words)
    unchanged = any(t > 0 for t in positions) or len(inputs) == 1
    return tuple(positions) if unchanged and changed <= agreeing else None


def replaces_words(id: int, vocabulary: Vocabulary) -> bool:
    """Whether it is a special token that replaces tokens: a mask, a sentinel."""
    return id == vocabulary.mask or id >= vocabulary.size


def _by_position(
    inputs: Sequence[int], clean: Sequence[int], positions: Sequence[int] | None, targets: set[int]
) -> tuple[int, ...] | None:
    """Permuted tokens that kept their position ids (MPNet)."""
    if positions is None:
        return None
    aligned = []
    for id, position in zip(inputs, positions, strict=False):
        if not 0 <= position < len(clean):
            return None
        same = id == clean[position]
        if not same and position not in targets:
            return None
        aligned.append(position if same else -1)
    return tuple(aligned)


def _by_spans(
    inputs: Sequence[int], clean: Sequence[int], clean_positions: Sequence[int] | None
) -> tuple[int, ...]:
    """Greedy longest common spans, since sentences may move.

    Targets fed back as inputs are aligned by their origins. Cost O(T² · spans).
    """
    positions = [-1] * len(inputs)
    free = [True] * len(clean)
    for t, position in enumerate((clean_positions or ())[: len(inputs) - 1], 1):
        if 0 <= position < len(clean) and clean[position] == inputs[t]:
            positions[t], free[position] = position, False
    while True:
        size, start, position_start = _longest_span(inputs, clean, positions, free)
        if not size:
            return tuple(positions)
        for step in range(size):
            positions[start + step] = position_start + step
            free[position_start + step] = False


def _longest_span(
    inputs: Sequence[int], clean: Sequence[int], positions: Sequence[int], free: Sequence[bool]
) -> tuple[int, int, int]:
    """Length, first input and first position of the longest unmatched span."""
    best = (0, 0, 0)
    lengths = [0] * (len(clean) + 1)
    for t, id in enumerate(inputs):
        now = [0] * (len(clean) + 1)
        for p, word in enumerate(clean):
            if positions[t] < 0 and free[p] and id == word:
                now[p + 1] = lengths[p] + 1
                size = now[p + 1]
                if size > best[0]:
                    best = (size, t - size + 1, p - size + 1)
        lengths = now
    return best
