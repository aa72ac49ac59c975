"""N-gram classifier of real texts against a language model's samples (scikit-learn)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lmlab

GRAMS = (2, 3)
PENALTIES = (0.3, 1.0)
"""C of the logistic regression; it and the longest n-gram are chosen by the validation split."""
DRAWN = 4096
"""Samples of the base for the classifier's log Z and for all evaluations of the base."""


class NgramClassifier:
    """A logistic regression on n-grams of the training split against samples of the base.

    log odds(x) = log p_data(x) / p_LM(x), so minus it is a residual energy, whose Z is estimated
    from fresh samples of the base.
    """

    def __init__(self, base: lmlab.LanguageModel, texts: dict[str, list[str]]) -> None:
        from lmlab.objectives.residual_nce import FrozenBaseLM

        tokenizer = base.model.tokenizer
        self.tokenizer, self.end = tokenizer, base.model.system.vocabulary.end
        known = {part: [self.ids(text) for text in split] for part, split in texts.items()}
        longest = max(map(len, known["train"]))
        drawing = FrozenBaseLM(base.model.system, max_length=longest)
        seeds = {"made up": len(known["train"]), "for z": DRAWN, "for test": DRAWN}
        drawn = {
            name: drawing.sample_texts(count, generator=generator(1 + number))
            for number, (name, count) in enumerate(seeds.items())
        }
        self.texts = known | drawn
        self.chosen = min(
            (self.fit(longest, penalty) for longest in GRAMS for penalty in PENALTIES),
            key=lambda fitted: fitted["validation_loss"],
        )

    def ids(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text), self.end]

    def fit(self, longest: int, penalty: float) -> dict[str, Any]:
        """Fit one, and its loss on validation texts and equally weighted fresh samples."""
        import numpy as np
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression

        grams = CountVectorizer(
            ngram_range=(1, longest), token_pattern=r"\S+", min_df=2, binary=True
        )
        data, made_up = spelled(self.texts["train"]), spelled(self.texts["made up"])
        features = grams.fit_transform(data + made_up)
        truth = np.repeat([1, 0], [len(data), len(made_up)])
        classifier = LogisticRegression(C=penalty, max_iter=200).fit(features, truth)

        def odds(texts: list[list[int]]) -> Any:
            return classifier.decision_function(grams.transform(spelled(texts)))

        real, drawn = odds(self.texts["validation"]), odds(self.texts["for z"])
        return {
            "longest_gram": longest,
            "penalty": penalty,
            "validation_loss": (np.logaddexp(0, -real).mean() + np.logaddexp(0, drawn).mean()) / 2,
            "odds": odds,
        }

    def figures(self) -> dict[str, Any]:
        """The selected one, with loss and gain on test texts and fresh samples of the base."""
        import numpy as np
        import torch

        from lmlab.models.residual_energy import PartitionEstimate

        odds = self.chosen["odds"]
        real, drawn = odds(self.texts["test"]), odds(self.texts["for test"])
        partition = PartitionEstimate.of(torch.from_numpy(-drawn))
        per_token = len(real) / sum(map(len, self.texts["test"]))
        return {
            **{name: value for name, value in self.chosen.items() if name != "odds"},
            "test_loss": (np.logaddexp(0, -real).mean() + np.logaddexp(0, drawn).mean()) / 2,
            "test_accuracy": ((real > 0).mean() + (drawn < 0).mean()) / 2,
            "gain_nats_per_token": (real.mean() - partition.high) * per_token,
            "gain_standard_error": {
                "of_texts": real.std() / math.sqrt(len(real)) * per_token,
                "of_log_z": partition.error * per_token,
            },
        }


def spelled(texts: Sequence[Sequence[int]]) -> list[str]:
    """Texts of ids as strings, each with a start symbol."""
    return [" ".join(map(str, ("s", *text))) for text in texts]


def generator(seed: int) -> Any:
    import torch

    return torch.Generator().manual_seed(seed)
