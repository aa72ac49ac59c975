"""What the two word-vector models share: their settings and how they are put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from lmlab.backbones.context_words import ContextWords
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.word2vec_emission import (
    ContextCombination,
    Word2VecEmission,
)
from lmlab.layers.unigram_distribution import UnigramDistribution
from lmlab.models.word2vec import Word2Vec
from lmlab.objectives.negative_sampling import NegativeSampling


@dataclass(frozen=True, kw_only=True)
class Word2VecConfig:
    """Settings of word vectors."""

    width: int = field(default=100, metadata={"at_least": 1})
    """Numbers in the vector of a word."""
    window: int = field(default=5, metadata={"at_least": 1})
    """Words to either side that are context; in training each window is 1 to so many words wide."""
    negatives: int = field(default=5, metadata={"at_least": 0})
    """k, noise words that each word is told from."""
    power: float = field(default=0.75, metadata={"at_least": 0})
    """Noise is drawn by counts to this power."""
    sample: float = field(default=1e-3, metadata={"at_least": 0})
    """Words with a larger share of the text than this are left out now and then; 0 for never."""
    threads: int = field(default=1, metadata={"at_least": 1})
    """Stretches of text that are learnt from at once; with more than one, two trainings differ."""
    fitting: Literal["words", "gradient"] = "words"
    """words: word by word, in compiled code; gradient: the ordinary loop and its optimisers."""


WORD2VEC_RECIPES: dict[str, dict[str, Any]] = {
    # word2vec's own: linear to nothing, words seen fewer than five times left out.
    "default": {
        "learning_rate": 0.025,
        "schedule": "linear",
        "tokens_per_batch": 8192,
        "min_count": 5,
        "epochs": 5,
    },
    "gradient": {"fitting": "gradient", "learning_rate": 0.01, "tokens_per_batch": 2048},
}


def build_word2vec(
    config: Word2VecConfig,
    vocabulary: Vocabulary,
    combination: ContextCombination,
    *,
    random_contexts: int = 0,
) -> Word2Vec:
    """A word model whose surroundings score a word by `combination`."""
    law = UnigramDistribution(vocabulary, power=config.power, sample=config.sample)
    system = Word2Vec(
        vocabulary=vocabulary,
        backbone=ContextWords(2 * config.window),
        emission=Word2VecEmission(config.width, law, combination, negatives=config.negatives),
        objective=NegativeSampling(
            law,
            window=config.window,
            negatives=config.negatives,
            random_contexts=random_contexts,
        ),
        fitting=config.fitting,
    )
    system.threads = config.threads
    return system
