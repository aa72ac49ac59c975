"""Classification as cloze: the label whose words best fill a blank after the text (GLM, PET)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from lmlab.core.errors import UserError
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.tokenizers import Tokenizer
from lmlab.models.cloze_classifier import ClozeClassifier
from lmlab.tasks.classification import Classification
from lmlab.tasks.task import EncodedExample, Row, special_tokens_of
from lmlab.training.run_config import RunConfig
from lmlab.training.run_folder import RunFolder, TrainedModel


class ClozeClassification(Classification):
    """Classification as cloze: p(label | text) ∝ p(the label's words | text ___).

    The labels are words, of one token or several, and nothing is added to the model: its own output
    layer scores them. The blank is after the text, so a text may end in a pattern (`… it was`).
    """

    name = "cloze"
    rows_like = "classify"
    options = frozenset()
    has_head = False

    def __init__(
        self, labels: Sequence[str] = (), *, tokenizer: Tokenizer, vocabulary: Vocabulary
    ) -> None:
        super().__init__(labels)
        start, end = special_tokens_of(vocabulary)
        self.verbalisers = [[*start, *tokenizer.encode(label), *end] for label in labels]

    @classmethod
    def from_rows(cls, rows: Sequence[Row], model: TrainedModel) -> Self:
        if not model.card.conditional or model.source_tokenizer is not None:
            raise UserError(
                f"the task cloze needs a system that scores words given a text, with one tokenizer "
                f"for both (glm, unilm, t5 …), and {model.card.name} is none; use --task classify."
            )
        checked = Classification.from_rows(rows, model)
        return cls(checked.labels, tokenizer=model.tokenizer, vocabulary=model.system.vocabulary)

    @classmethod
    def from_config(cls, config: RunConfig, run: RunFolder) -> Self:
        labels = () if config.task is None else config.task.labels
        tokenizer = Tokenizer.load(run.tokenizer)
        return cls(labels, tokenizer=tokenizer, vocabulary=config.vocabulary)

    def build(self, base: System, *, frozen: bool) -> System:
        return ClozeClassifier(base, self, self.verbalisers)

    def encode(
        self, row: Mapping[str, Any], tokenizer: Tokenizer, vocabulary: Vocabulary, max_length: int
    ) -> EncodedExample:
        """Positions are left for the blank and the words in it."""
        longest = max(map(len, self.verbalisers))
        return super().encode(row, tokenizer, vocabulary, max(max_length - longest - 1, 2))
