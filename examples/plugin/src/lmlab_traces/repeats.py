"""The verb `repeats`: how often a model repeats itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lmlab.core.options import Option
from lmlab.core.shared_options import Seed

if TYPE_CHECKING:
    from lmlab.verbs.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """The result, whose fields are printed."""

    texts: int
    words: int
    repeated: float
    """Share of words that occur earlier in their text."""


def repeats(
    model: LanguageModel,
    *,
    texts: Annotated[int, Option("Number of sampled texts.", minimum=1)] = 20,
    seed: Seed = 0,
) -> Repeats:
    """Share of words in sampled texts that occur earlier in the same text."""
    sampled = [text.text.split() for text in model.sample(texts, seed=seed)]
    words = sum(map(len, sampled))
    distinct = sum(len(set(text)) for text in sampled)
    return Repeats(texts=texts, words=words, repeated=1 - distinct / max(words, 1))
