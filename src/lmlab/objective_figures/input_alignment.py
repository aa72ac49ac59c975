"""Which words of a clean text an objective's inputs still show, and which of them it hides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class InputAlignment:
    """Where in the clean text each input comes from."""

    positions: tuple[int, ...]
    """The place in the clean text of each input, -1 where it is no word of the text's."""
    shift: int | None
    """Input t stands for place t + shift, shown or hidden; None where inputs move about."""

    def answers(self, unseen: Mapping[int, Set[int]]) -> frozenset[int]:
        """Inputs that show a word to all but the place that is asked for it.

        `unseen` tells by asked place of the clean text which inputs its prediction may not see.
        """
        pairs = enumerate(self.positions)
        return frozenset(t for t, place in pairs if place in unseen and t in unseen[place])

    def masked_positions(self, unseen: Mapping[int, Set[int]], length: int) -> frozenset[int]:
        """Places of the clean text that are asked and not seen by the prediction.

        Where everything is asked and fed as well (left to right, in any order), sight alone hides:
        no word stands out, and none is told.
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
    """Match inputs with the clean text: place by place where that fits, else by common stretches.

    `asked` are the places of the clean text that targets come from, wherever they are asked, and
    `clean_positions` those of the targets at these very inputs.
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
    """Inputs that are the target of the place before them: teacher forcing."""
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
    """Inputs that stand in a stretch of another text, two words of it at least."""
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
    inputs: Sequence[int],
    clean: Sequence[int],
    shift: int,
    asked: set[int],
    vocabulary: Vocabulary,
) -> tuple[int, ...] | None:
    """Each input is the word at its place, or another in place of one that is asked.

    Where more words are others than are the same, they have rather been moved.
    """
    if not inputs or len(inputs) + shift > len(clean):
        return None
    # An end symbol that stands early ends another text, unless just one word was changed into it.
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
    """Whether it is a symbol that takes the place of words: a mask, a sentinel."""
    return id == vocabulary.mask or id >= vocabulary.size


def _by_position(
    inputs: Sequence[int], clean: Sequence[int], positions: Sequence[int] | None, asked: set[int]
) -> tuple[int, ...] | None:
    """Words that were put in another order and kept their positions (MPNet)."""
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
    """The longest common stretch, then the longest of what is left, and so on: sentences may move.

    Answers that are given back are known by their origins. Cost O(T² · stretches), for pictures.
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
    """Length, first input and first place of the longest stretch that is not matched yet."""
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
