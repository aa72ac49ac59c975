"""word2vec (CBOW, skip-gram): shared settings and builder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from lmlab.backbones.window import ContextWords
from lmlab.core.vocabulary import Vocabulary
from lmlab.emissions.word2vec_emission import ContextCombination, Word2VecEmission
from lmlab.layers.unigram_distribution import UnigramDistribution
from lmlab.models.word2vec import Word2Vec
from lmlab.objectives.context_windows import ContextWindows
from lmlab.objectives.negative_sampling import FullSoftmax, NegativeSampling


@dataclass(frozen=True, kw_only=True)
class Word2VecConfig:
    """Settings of word2vec."""

    width: int = field(default=100, metadata={"at_least": 1})
    """Size of word vectors."""
    window: int = field(default=5, metadata={"at_least": 1})
    """Maximum context words on each side; in training the window size is sampled from 1 up."""
    objective: Literal["negative-sampling", "softmax"] = "negative-sampling"
    """negative-sampling, or the full softmax over all words."""
    negatives: int = field(default=5, metadata={"at_least": 0})
    """k, negative samples per word; no effect on the full softmax."""
    max_norm: float = field(default=0.0, metadata={"at_least": 0})
    """Limit on the length of all vectors; 0 for none."""
    power: float = field(default=0.75, metadata={"at_least": 0})
    """Exponent of the unigram counts in the noise distribution."""
    sample: float = field(default=1e-3, metadata={"at_least": 0})
    """Subsampling threshold for frequent words, as a relative frequency; 0 for none."""
    threads: int = field(default=1, metadata={"at_least": 1})
    """Parallel training threads (Hogwild); not reproducible with more than one."""
    fitting: Literal["words", "gradient"] = "words"
    """words: per-word SGD in compiled code; gradient: the standard training loop."""


ConfigType = TypeVar("ConfigType", bound=Word2VecConfig)


def make_word2vec_sizes(config: type[ConfigType]) -> dict[str, ConfigType]:
    return {
        "tiny": config(width=8, window=2, sample=0.0),
        "small": config(),
        "base": config(width=300),
    }


WORD2VEC_RECIPES: dict[str, dict[str, Any]] = {
    # word2vec's defaults: linear decay to zero, words with fewer than five occurrences dropped.
    "default": {
        "learning_rate": 0.025,
        "schedule": "linear",
        "tokens_per_batch": 8192,
        "min_count": 5,
        "epochs": 5,
    },
    "gradient": {"fitting": "gradient", "learning_rate": 0.01, "tokens_per_batch": 2048},
    "softmax": {
        "objective": "softmax",
        "fitting": "gradient",
        "learning_rate": 0.01,
        "tokens_per_batch": 2048,
        "min_count": 5,
        "epochs": 5,
    },
}


def build_word2vec(
    config: Word2VecConfig,
    vocabulary: Vocabulary,
    combination: ContextCombination,
    *,
    random_contexts: int = 0,
) -> Word2Vec:
    """Build word2vec; `combination` says how context vectors score a word."""
    unigram = UnigramDistribution(vocabulary, power=config.power, sample=config.sample)
    windows = {"window": config.window, "random_contexts": random_contexts}
    objective: ContextWindows
    if config.objective == "softmax":
        negatives, objective = None, FullSoftmax(unigram, **windows)
    else:
        negatives = config.negatives
        objective = NegativeSampling(unigram, negatives=negatives, **windows)
    return Word2Vec(
        vocabulary=vocabulary,
        backbone=ContextWords(2 * config.window),
        emission=Word2VecEmission(
            config.width, unigram, combination, negatives=negatives, max_norm=config.max_norm
        ),
        objective=objective,
        fitting=config.fitting,
        threads=config.threads,
    )
