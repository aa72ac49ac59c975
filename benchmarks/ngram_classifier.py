"""N-gram classifier of real texts against a language model's samples (scikit-learn)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lmlab

MAX_ORDERS = (2, 3)
PENALTIES = (0.3, 1.0)
"""C of the logistic regression; it and the maximum order are selected on the validation split."""
BASE_SAMPLES = 4096
"""Number of samples of the base for log Z, and for the evaluation of the base."""


class NgramClassifier:
    """Logistic regression on n-grams: training texts against samples of the base model.

    The log-odds estimate log p_data(x) / p_LM(x), so their negative is a residual energy, whose Z
    is estimated from fresh samples of the base.
    """

    def __init__(self, base: lmlab.LanguageModel, texts: dict[str, list[str]]) -> None:
        from lmlab.objectives.residual_nce import FrozenBaseLM

        tokenizer = base.model.tokenizer
        self.tokenizer, self.end = tokenizer, base.model.system.vocabulary.end
        encoded = {part: [self.ids(text) for text in split] for part, split in texts.items()}
        max_length = max(map(len, encoded["train"]))
        sampler = FrozenBaseLM(base.model.system, max_length=max_length)
        sample_counts = {
            "generated": len(encoded["train"]),
            "for z": BASE_SAMPLES,
            "for test": BASE_SAMPLES,
        }
        samples = {
            name: sampler.sample_texts(count, generator=generator(1 + number))
            for number, (name, count) in enumerate(sample_counts.items())
        }
        self.texts = encoded | samples
        self.selected = min(
            (self.fit(max_order, penalty) for max_order in MAX_ORDERS for penalty in PENALTIES),
            key=lambda fitted: fitted["validation_loss"],
        )

    def ids(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), self.end]

    def fit(self, max_order: int, penalty: float) -> dict[str, Any]:
        """Fit a classifier; its loss on validation texts and fresh samples, weighted equally."""
        import numpy as np
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression

        vectorizer = CountVectorizer(
            ngram_range=(1, max_order), token_pattern=r"\S+", min_df=2, binary=True
        )
        data, generated = id_strings(self.texts["train"]), id_strings(self.texts["generated"])
        features = vectorizer.fit_transform(data + generated)
        labels = np.repeat([1, 0], [len(data), len(generated)])
        classifier = LogisticRegression(C=penalty, max_iter=200).fit(features, labels)

        def log_odds(texts: list[list[int]]) -> Any:
            return classifier.decision_function(vectorizer.transform(id_strings(texts)))

        real, sampled = log_odds(self.texts["validation"]), log_odds(self.texts["for z"])
        return {
            "longest_gram": max_order,
            "penalty": penalty,
            "validation_loss": (np.logaddexp(0, -real).mean() + np.logaddexp(0, sampled).mean())
            / 2,
            "odds": log_odds,
        }

    def figures(self) -> dict[str, Any]:
        """Loss, accuracy and gain of the selected classifier on test texts and fresh samples."""
        import numpy as np
        import torch

        from lmlab.models.residual_energy import PartitionEstimate

        log_odds = self.selected["odds"]
        real, sampled = log_odds(self.texts["test"]), log_odds(self.texts["for test"])
        partition = PartitionEstimate.of(torch.from_numpy(-sampled))
        per_token = len(real) / sum(map(len, self.texts["test"]))
        return {
            **{name: value for name, value in self.selected.items() if name != "odds"},
            "test_loss": (np.logaddexp(0, -real).mean() + np.logaddexp(0, sampled).mean()) / 2,
            "test_accuracy": ((real > 0).mean() + (sampled < 0).mean()) / 2,
            "gain_nats_per_token": (real.mean() - partition.high) * per_token,
            "gain_standard_error": {
                "of_texts": real.std() / math.sqrt(len(real)) * per_token,
                "of_log_z": partition.error * per_token,
            },
        }


def id_strings(texts: Sequence[Sequence[int]]) -> list[str]:
    """Sequences of ids as strings, each with a start token."""
    return [" ".join(map(str, ("s", *text))) for text in texts]


def generator(seed: int) -> Any:
    import torch

    return torch.Generator().manual_seed(seed)
