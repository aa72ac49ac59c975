"""Every system can be trained on the corpus that its card names, at every size."""

from __future__ import annotations

from functools import cache

import pytest

from lmlab.core.registry import catalogue, system_module
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import open_corpus
from lmlab.data.tokenizers import tokenizer_for
from lmlab.training.config import TrainingConfig
from lmlab.training.data_loaders import training_data
from lmlab.training.system_building import build_tiny

from .claims import claim

QUICK_CORPORA = ("grammar", "capitals", "capitals-annotated", "capitals-questions", "wordnet")
CARDS = [
    pytest.param(name, marks=() if card.corpus in QUICK_CORPORA else pytest.mark.slow)
    for name, card in catalogue().items()
    if not card.base  # else its texts are as long as those of its base, which is trained first
]


@cache
def longest_lengths(corpus: str) -> tuple[int, int]:
    """Tokens of the longest text of a corpus, and of what a text is given."""
    opened = open_corpus(corpus)
    data = training_data(opened, tokenizer_for(opened, None), TrainingConfig(), progress=False)
    return data.max_length, data.max_source_length


@pytest.mark.parametrize("name", CARDS)
def test_system_accepts_its_card_corpus(name: str) -> None:
    longest, longest_condition = longest_lengths(catalogue()[name].corpus)
    system = build_tiny(name, Vocabulary(size=40))
    system.check_length(longest)
    system.check_condition_length(longest_condition)
    sizes = system_module(name).SIZES
    needed = 0 if system.window is None else longest
    for size, config in sizes.items():
        length = getattr(config, "length", None)
        claim(
            length is None or length >= needed - 1,
            f"{name} of size {size} reads {length} tokens, and the longest text of its card's "
            f"corpus has {longest}",
        )
