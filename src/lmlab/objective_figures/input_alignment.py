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

    def answers(self, unseen: Mapping[int, Set[int]]) -> frozenset[int]:
        """Inputs that show a token to all positions but the one that predicts it.

        `unseen` maps each target position of the clean text to the inputs masked from its
        prediction.
        """
        pairs = enumerate(self.positions)
        return frozenset(t for t, place in pairs if place in unseen and t in unseen[place])

    def masked_positions(self, unseen: Mapping[int, Set[int]], length: int) -> frozenset[int]:
        """Clean-text positions that are predicted without being visible to the prediction.

        Empty if every token is both input and target (left to right, permuted orders): then only
        the attention mask hides, and no token stands out.
        """
        inputs: dict[int, set[int]] = {}
        for t, place in enumerate(self.positions):
            inputs.setdefault(place, set()).add(t)
        asked = {place for place in unseen if 0 <= place < length}
        if len(asked) >= length - 1 and sum(place in inputs for place in asked) >= len(asked) - 1:
            return frozenset()
        return frozenset(p for p in asked if inputs.get(p, set()) <= set(unseen[p]))


def align_inputs(
    inputs: Sequence[int],
    clean: Sequence[int],
    *,
    asked: Sequence[int] | None,
    clean_positions: Sequence[int] | None,
    positions: Sequence[int] | None,
    vocabulary: Vocabulary,
) -> InputAlignment:
    """Align inputs with the clean text: position by position if that fits, else by common spans.

    `asked` are the clean-text positions of all targets, `clean_positions` those of the targets at
    these inputs.
    """
    hidden = {place for place in asked or () if place >= 0}
    for shift in (0, 1):
        found = _straight(inputs, clean, shift, hidden, vocabulary)
        if found is not None:
            return InputAlignment(positions=found, shift=shift)
    found = _by_position(inputs, clean, positions, hidden)
    if found is None:
        found = _by_stretches(inputs, clean, clean_positions)
    return InputAlignment(positions=found, shift=None)


def teacher_forced_inputs(inputs: Sequence[int], targets: Sequence[int] | None) -> frozenset[int]:
    """Inputs that are the target of the position before them: teacher forcing."""
    if targets is None:
        return frozenset()
    return frozenset(
        place
        for place in range(1, len(inputs))
        if targets[place - 1] != NO_TARGET and targets[place - 1] == inputs[place]
    )


def inputs_from_other_text(
    inputs: Sequence[int], reading: InputAlignment, other: Sequence[int]
) -> frozenset[int]:
    """Inputs inside a span of at least two tokens from another text."""
    left = [id if place < 0 else -1 for id, place in zip(inputs, reading.positions, strict=True)]
    places = _by_stretches(left, other, None)
    return frozenset(
        t
        for t, place in enumerate(places)
        if place >= 0
        and any(
            0 <= near < len(places) and places[near] == place + near - t for near in (t - 1, t + 1)
        )
    )


def _straight(
    inputs: Sequence[int], clean: Sequence[int], shift: int, asked: set[int], vocabulary: Vocabulary
) -> tuple[int, ...] | None:
    """Identity alignment: each input is the token at its position, or replaces a target.

    None if more tokens differ than agree: then they have rather been moved.
    """
    if not inputs or len(inputs) + shift > len(clean):
        return None
    # An early end token ends another text, unless it is the only replaced token.
    frame = (vocabulary.start, vocabulary.end, vocabulary.pad)
    whole = len(inputs) + shift == len(clean)
    places = []
    for place, id in enumerate(inputs):
        same = id == clean[place + shift]
        if not same and (place + shift not in asked or (id in frame and not whole)):
            return None
        places.append(place + shift if same else -1)
    words = [(id, place) for id, place in zip(inputs, places, strict=True) if id not in frame]
    shown = sum(place >= 0 for _, place in words)
    moved = len(words) - shown - sum(replaces_words(id, vocabulary) for id, _ in words)
    kept = any(place > 0 for place in places) or len(inputs) == 1
    return tuple(places) if kept and moved <= shown else None


def replaces_words(id: int, vocabulary: Vocabulary) -> bool:
    """Whether it is a special token that replaces tokens: a mask, a sentinel."""
    return id == vocabulary.mask or id >= vocabulary.size


def _by_position(
    inputs: Sequence[int], clean: Sequence[int], positions: Sequence[int] | None, asked: set[int]
) -> tuple[int, ...] | None:
    """Permuted tokens that kept their position ids (MPNet)."""
    if positions is None:
        return None
    places = []
    for id, position in zip(inputs, positions, strict=False):
        if not 0 <= position < len(clean):
            return None
        same = id == clean[position]
        if not same and position not in asked:
            return None
        places.append(position if same else -1)
    return tuple(places)


def _by_stretches(
    inputs: Sequence[int], clean: Sequence[int], clean_positions: Sequence[int] | None
) -> tuple[int, ...]:
    """Greedy longest common spans, since sentences may move.

    Targets fed back as inputs are aligned by their origins. Cost O(T² · spans).
    """
    places = [-1] * len(inputs)
    free = [True] * len(clean)
    for t, place in enumerate((clean_positions or ())[: len(inputs) - 1], 1):
        if 0 <= place < len(clean) and clean[place] == inputs[t]:
            places[t], free[place] = place, False
    while True:
        size, start, where = _longest(inputs, clean, places, free)
        if not size:
            return tuple(places)
        for step in range(size):
            places[start + step] = where + step
            free[where + step] = False


def _longest(
    inputs: Sequence[int], clean: Sequence[int], places: Sequence[int], free: Sequence[bool]
) -> tuple[int, int, int]:
    """Length, first input and first position of the longest unmatched span."""
    best = (0, 0, 0)
    lengths = [0] * (len(clean) + 1)
    for t, id in enumerate(inputs):
        now = [0] * (len(clean) + 1)
        for place, word in enumerate(clean):
            if places[t] < 0 and free[place] and id == word:
                now[place + 1] = lengths[place] + 1
                size = now[place + 1]
                if size > best[0]:
                    best = (size, t - size + 1, place - size + 1)
        lengths = now
    return best
