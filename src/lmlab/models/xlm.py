"""Cross-lingual masked language models (XLM): language embeddings, texts given their sources."""

from __future__ import annotations

from torch import Tensor

from lmlab.core.batch import Batch
from lmlab.core.errors import unknown_name
from lmlab.core.parts import Backbone, Emission
from lmlab.core.view import View
from lmlab.core.vocabulary import Vocabulary
from lmlab.models.masked_lm import MaskedLM
from lmlab.objectives.translation_lm import TranslationLM, pad_columns


class XLM(MaskedLM):
    """XLM (Lample and Conneau 2019): a masked LM of single texts and of pairs of translations.

    A text without a source is in the language that `use_language` selects.
    """

    objective: TranslationLM

    def __init__(
        self,
        *,
        vocabulary: Vocabulary,
        backbone: Backbone,
        emission: Emission,
        objective: TranslationLM,
        languages: tuple[str, ...],
    ) -> None:
        super().__init__(
            vocabulary=vocabulary, backbone=backbone, emission=emission, objective=objective
        )
        self.languages = languages

    def use_language(self, name: str) -> None:
        """Take texts without a source to be in this language."""
        if name not in self.languages:
            raise unknown_name("language", name, self.languages)
        self.objective.use_language(self.languages.index(name))

    def hidden_at(self, view: View, mask: Tensor) -> Tensor:
        """(N, W) hidden states at positions of the text (B, T), which its source follows."""
        return super().hidden_at(view, pad_columns(mask, view.inputs.shape[1]))

    def encode_tokens(self, batch: Batch) -> Tensor:
        """(B, T, W) hidden states of the unmasked text, given its source if there is one."""
        return self.hidden(self.objective.clean_view(batch)).values[:, : batch.tokens.shape[1]]
