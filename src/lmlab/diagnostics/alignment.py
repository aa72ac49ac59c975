"""Which words of a clean text an objective's inputs still show, and which of them it hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lmlab.core.view import NO_TARGET
from lmlab.core.vocabulary import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Where in the clean text each input comes from."""

    places: tuple[int, ...]
    """The place in the clean text of each input, -1 where it is no word of the text's."""
    shift: int | None
    """Input t stands for place t + shift, shown or hidden; None where inputs move about."""
    answers: frozenset[int] = frozenset()
    """Inputs that only give back what was asked at the place before."""

    def hidden(self, asked: Sequence[int] | None, length: int) -> frozenset[int]:
        """Places of the clean text that are asked and that no input shows beforehand.

        A text that is read from left to right is hidden by sight alone: nothing of it counts.
        """
        origins = {place for place in asked or () if 0 <= place < length}
        shown = {p for t, p in enumerate(self.places) if p >= 0 and t not in self.answers}
        if self.answers and len(shown) <= 1:
            return frozenset()
        return frozenset(origins - shown)


def read_text(
    inputs: Sequence[int],
    clean: Sequence[int],
    *,
    asked: Sequence[int] | None,
    origins: Sequence[int] | None,
    positions: Sequence[int] | None,
    vocabulary: Vocabulary,
) -> Reading:
    """Match inputs with the clean text: place by place where that fits, else by common stretches.

    `asked` are the places of the clean text that targets come from, wherever they are asked, and
    `origins` those of the targets at these very inputs.
    """
    hidden = {place for place in asked or () if place >= 0}
    for shift in (0, 1):
        found = _straight(inputs, clean, shift, hidden, vocabulary)
        if found is not None:
            return Reading(places=found, shift=shift, answers=_answers(found, origins))
    found = _by_position(inputs, clean, positions, hidden)
    if found is None:
        found = _by_stretches(inputs, clean, origins)
    return Reading(places=found, shift=None, answers=_answers(found, origins))


def given_back(inputs: Sequence[int], targets: Sequence[int] | None) -> frozenset[int]:
    """Inputs that are the target of the place before them: teacher forcing."""
    if targets is None:
        return frozenset()
    return frozenset(
        place
        for place in range(1, len(inputs))
        if targets[place - 1] != NO_TARGET and targets[place - 1] == inputs[place]
    )


def _answers(places: Sequence[int], origins: Sequence[int] | None) -> frozenset[int]:
    """Inputs from the very place that the prediction before them came from."""
    before = [-1, *(origins or ())]
    pairs = zip(places, before, strict=False)
    return frozenset(t for t, (place, asked) in enumerate(pairs) if place >= 0 and place == asked)


def _straight(
    inputs: Sequence[int],
    clean: Sequence[int],
    shift: int,
    asked: set[int],
    vocabulary: Vocabulary,
) -> tuple[int, ...] | None:
    """Each input is the word at its place, or another in place of one that is asked."""
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
    return tuple(places) if any(place > 0 for place in places) or len(inputs) == 1 else None


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
    inputs: Sequence[int], clean: Sequence[int], origins: Sequence[int] | None
) -> tuple[int, ...]:
    """The longest common stretch, then the longest of what is left, and so on: sentences may move.

    Answers that are given back are known by their origins. Cost O(T² · stretches), for pictures.
    """
    places = [-1] * len(inputs)
    free = [True] * len(clean)
    for t, place in enumerate((origins or ())[: len(inputs) - 1], 1):
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
