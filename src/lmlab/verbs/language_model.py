"""`LanguageModel`: a trained model that scores, embeds, links, detects and generates texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lmlab.verbs import evaluation, generation, scoring

if TYPE_CHECKING:
    from lmlab.core.capture import Capture
    from lmlab.core.card import Card
    from lmlab.core.system import System
    from lmlab.data.tokenizers import Tokenizer
    from lmlab.sampling.prompts import EncodedPrefix
    from lmlab.training.run_config import RunConfig
    from lmlab.training.run_folder import TrainedModel


class LanguageModel:
    """A trained model, from `lmlab.load(run)` or `lmlab.wrap(module, tokenizer)`.

    Its methods are the verbs that take one run; each is a function of the package `lmlab.verbs`.
    """

    def __init__(self, model: TrainedModel) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.card.name}, {str(self.path)!r})"

    @property
    def card(self) -> Card:
        """The system's card: paper, source, kind, capabilities."""
        return self.model.card

    @property
    def config(self) -> RunConfig:
        """The run's config.json."""
        return self.model.config

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.model.path

    @property
    def system(self) -> System:
        """The torch module, in evaluation mode."""
        return self.model.system

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer: text to ids and back."""
        return self.model.tokenizer

    scorer = scoring.scorer
    source_scorer = scoring.source_scorer
    score = scoring.score
    score_stream = scoring.score_stream
    score_given = scoring.score_given
    summary = scoring.summary
    pairs = evaluation.model_pairs
    cloze = evaluation.cloze
    prompt = evaluation.prompt
    sample = generation.sample
    chains = generation.chains
    fill = generation.fill
    fill_stream = generation.fill_stream
    translate = generation.translate
    translate_stream = generation.translate_stream
    ask = generation.ask
    ask_stream = generation.ask_stream
    encode = scoring.encode
    encode_stream = scoring.encode_stream
    detect = scoring.detect
    detect_stream = scoring.detect_stream
    link = scoring.link
    link_stream = scoring.link_stream

    def encode_prefix(self, text: str) -> EncodedPrefix:
        """The input ids of a prefix, and its unknown words."""
        from lmlab.sampling.prompts import encode_prefix

        return encode_prefix(text, self.tokenizer)

    def capture_internals(self, text: str, source: str | None = None) -> dict[str, Capture]:
        """Activations on a text by name: each layer's attention, sublayer outputs, hidden states.

        A `Capture` has values (a tensor with a batch of one), axes (the meaning of its dimensions)
        and a sentence on how to read it. Masked models get the unmasked text; `source` is a
        translator's.

        >>> _ = lmlab.train(
        ...     "gpt", data="grammar", out="runs/inside", size="tiny", steps=2, quiet=True
        ... )
        >>> captures = lmlab.load("runs/inside").capture_internals("the dog sleeps")
        >>> captures["layer 1 attention"].axes
        ('batch', 'head', 'time', 'source')
        """
        # Lazy import: it loads matplotlib.
        from lmlab.inspection.capture_collection import collect_text_captures

        return collect_text_captures(self.model, text, source)
