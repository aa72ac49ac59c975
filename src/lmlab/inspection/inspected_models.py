"""Inspected model: a run with tokenised sentences and corpus texts to plot; names of token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluation_mode
from lmlab.core.protocols import LogProb, Sample, Step
from lmlab.core.system import System
from lmlab.core.vocabulary import Vocabulary
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.corpus_encoding import encode_with_special_tokens, special_tokens_around
from lmlab.data.readers import Example
from lmlab.sampling.decoding import sample_sequences
from lmlab.training.run_folder import RunFolder, TrainedModel
from lmlab.training.training_logs import read_metrics


@runtime_checkable
class NamesSpecialTokens(Protocol):
    """An objective that names its own special tokens beyond the tokenizer's."""

    symbols: Mapping[int, str]


@runtime_checkable
class NamesOutcomes(Protocol):
    """An emission that names its outcomes, which are not tokens."""

    outcomes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TokenNames:
    """Names of token ids."""

    token: Callable[[int], str]
    """The text of a tokenizer id."""
    vocabulary: Vocabulary
    """The tokenizer's; ids beyond it are special tokens of the system."""
    symbols: Mapping[int, str]
    """Names of those special tokens, if the objective has them; others are numbered."""
    outcomes: tuple[str, ...] = ()
    """Names of targets that are not tokens."""

    def target(self, id: int) -> str:
        """Name of a target."""
        return self.outcomes[id] if self.outcomes else self.name(id)

    def name(self, id: int) -> str:
        """Name of any id."""
        if id in self.symbols:
            return self.symbols[id]
        beyond = id - self.vocabulary.size
        return self.token(id) if beyond < 0 else f"⟨{beyond + 1}⟩"


DEFAULT_SENTENCES = 3
"""Sentences shown by default."""
MIN_SENTENCE_TOKENS, MAX_SENTENCE_TOKENS = 5, 25
"""Shortest and longest sentence to choose, in tokens."""
SAMPLE_SIZE = 96
"""Texts to average over."""
COUNTED_TEXTS = 4000
"""Texts whose tokens are counted."""


@dataclass(frozen=True, kw_only=True)
class TokenizedSentence:
    """A text as the model's input."""

    text: str
    ids: tuple[int, ...]
    """Start token first, and the end token if the model predicts it."""
    tokens: tuple[str, ...]
    """Token strings."""
    condition: str | None = None
    """The condition, if any: a translator's source."""
    given: tuple[int, ...] = ()
    """Token ids of the condition."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InspectedModel:
    """A run under inspection."""

    name: str
    model: TrainedModel
    sentences: tuple[TokenizedSentence, ...]
    """The sentences shown."""
    sample: tuple[TokenizedSentence, ...]
    """The sentences to average over, without those shown."""
    counts: Counter[int] = field(default_factory=Counter)
    """Token counts in some training texts; empty if the corpus is gone."""
    metrics: tuple[dict[str, Any], ...] = ()
    note: str = ""
    """Remark on where the sentences come from."""

    @property
    def system(self) -> System:
        return self.model.system

    def token(self, id: int) -> str:
        """The text of a token id."""
        return self.model.tokenizer.token(id)


def make_inspected_models(
    models: Sequence[TrainedModel], texts: Sequence[str] = ()
) -> list[InspectedModel]:
    """The runs with the same sentences: those given, or some of the first run's texts."""
    for text in texts:
        if not text.strip():
            raise UserError("a text to inspect must have at least one word, got an empty text.")
    examples = [Example(text=text) for text in texts]
    if not texts and len(models) > 1:
        pool = [_example(s) for s in _pool(models[0], training_corpus(models[0]))[0]]
        fitting = [s for s in pool if all(fits_window(m, _sentence(m, s)) for m in models)]
        examples = [
            _example(s) for s in choose_sentences([_sentence(models[0], e) for e in fitting])
        ]
    return [
        _inspected_model(model, examples, name=name)
        for model, name in zip(models, _names(models), strict=True)
    ]


def _names(models: Sequence[TrainedModel]) -> list[str]:
    """Folder names; full paths if two are equal."""
    names = [model.name for model in models]
    return [model.name if names.count(model.name) == 1 else str(model.path) for model in models]


def make_inspected_model(
    model: TrainedModel, texts: Sequence[str] = (), *, name: str = ""
) -> InspectedModel:
    """Prepare a run for inspection; without texts, use its corpus or its samples."""
    return _inspected_model(model, [Example(text=text) for text in texts], name=name)


def _inspected_model(
    model: TrainedModel, examples: Sequence[Example], *, name: str
) -> InspectedModel:
    corpus = training_corpus(model)
    pool, note = _pool(model, corpus)
    tokenizer_note = _setup_tokenizer(model)
    sentences = [_sentence(model, example) for example in examples]
    for sentence in sentences:
        model.system.check_length(len(sentence.ids))
    chosen = sentences or choose_sentences(pool)
    if not chosen:
        raise UserError(
            f"the training corpus of {model.path} is missing, and the model generates no text "
            "by itself; give one by --text (in Python texts=)."
        )
    return InspectedModel(
        name=name or model.name,
        model=model,
        sentences=tuple(chosen),
        sample=tuple(sentence for sentence in pool if sentence not in chosen)[:SAMPLE_SIZE],
        counts=_counts(model, corpus),
        metrics=tuple(read_metrics(RunFolder(model.path).metrics)),
        note=" ".join(filter(None, ("" if sentences else note, tokenizer_note))),
    )


def _setup_tokenizer(model: TrainedModel) -> str:
    """Set up whole-word views from the tokenizer; a remark if it fails.

    Not done on loading: reading a lexicon takes seconds, and scoring needs none.
    """
    try:
        model.system.setup_tokenizer(model.tokenizer)
    except UserError as error:
        return f"Figures of {model.name} show single tokens where it masks names: {error}"
    return ""


def training_corpus(model: TrainedModel) -> Corpus | None:
    """The training corpus, if it still exists unchanged."""
    trained_on = model.config.corpus
    if not trained_on.spec:
        return None
    try:
        corpus = open_corpus(trained_on.spec, errors=trained_on.decode_errors, seed=trained_on.seed)
        return corpus if corpus.fingerprint() == trained_on.fingerprint else None
    except UserError:
        return None


def tokenize_sentence(
    model: TrainedModel, text: str, condition: str | None = None
) -> TokenizedSentence:
    """Tokenise a text and its condition with the special tokens of training."""
    _, tail = special_tokens_around(model.tokenizer.vocabulary, model.layout)
    ids = [model.system.vocabulary.bos, *model.tokenizer.encode(text), *tail]
    ids = ids[: model.layout.cut]
    condition_ids = (
        ()
        if condition is None
        else encode_with_special_tokens(model.effective_source_tokenizer, condition)
    )
    tokens = tuple(map(model.tokenizer.token, ids))
    return TokenizedSentence(
        text=text, ids=tuple(ids), tokens=tokens, condition=condition, given=condition_ids
    )


def _sentence(model: TrainedModel, example: Example) -> TokenizedSentence:
    condition = example.condition if model.card.conditional else None
    return tokenize_sentence(model, example.text, condition)


def _example(sentence: TokenizedSentence) -> Example:
    return Example(text=sentence.text, condition=sentence.condition)


def fits_window(model: TrainedModel, sentence: TokenizedSentence) -> bool:
    """Whether the text fits the model's window."""
    try:
        model.system.check_length(len(sentence.ids))
    except UserError:
        return False
    return len(sentence.ids) > 1


def choose_sentences(pool: Sequence[TokenizedSentence]) -> list[TokenizedSentence]:
    """The first few of medium length; else the first few."""
    fitting = [s for s in pool if MIN_SENTENCE_TOKENS <= len(s.ids) <= MAX_SENTENCE_TOKENS]
    return list((fitting or list(pool))[:DEFAULT_SENTENCES])


def embedding_name(parameter: str) -> str:
    """`backbone.embedding.weight` as `embedding`: the readable name of an embedding table."""
    return parameter.removesuffix(".weight").removeprefix("backbone.")


def batches_by_length(system: System, sentences: Sequence[TokenizedSentence]) -> list[Batch]:
    """One batch per length, so that nothing is padded, shortest first."""
    by_length: dict[int, list[TokenizedSentence]] = {}
    for sentence in sentences:
        by_length.setdefault(len(sentence.ids), []).append(sentence)
    return [collate_sentences(system, by_length[length]) for length in sorted(by_length)]


def collate_sentences(system: System, sentences: Sequence[TokenizedSentence]) -> Batch:
    """Sentences as one batch, right-padded, with their conditions if all have one."""
    pad, condition = system.vocabulary.pad, None
    if all(s.given for s in sentences):
        condition = Batch.collate([s.given for s in sentences], pad=pad)
    return Batch.collate([s.ids for s in sentences], pad=pad, condition=condition)


def _pool(model: TrainedModel, corpus: Corpus | None) -> tuple[list[TokenizedSentence], str]:
    """The run's own sentences that it can encode, and a remark on their origin."""
    texts, note = _run_texts(model, corpus)
    sentences = [_sentence(model, s) for s in dict.fromkeys(texts) if s.text.strip()]
    max_length = _max_scorable_length(model, [s for s in sentences if fits_window(model, s)])
    return [s for s in sentences if len(s.ids) <= max_length and fits_window(model, s)], note


def _max_scorable_length(model: TrainedModel, sentences: Sequence[TokenizedSentence]) -> int:
    """Length of the longest sentence that the system accepts: some refuse only when scoring."""
    by_length = {len(s.ids): s for s in sentences}
    for length in sorted(by_length, reverse=True):
        try:
            with evaluation_mode(model.system):
                if isinstance(model.system, LogProb):
                    generator = torch.Generator().manual_seed(0)
                    batch = collate_sentences(model.system, [by_length[length]])
                    model.system.log_prob(batch, generator=generator)
            return length
        except UserError:
            continue
    return 0


def _run_texts(model: TrainedModel, corpus: Corpus | None) -> tuple[list[Example], str]:
    if corpus is not None and (corpus.layout.kind != "pairs" or model.card.conditional):
        return list(corpus.split("validation").first(4 * SAMPLE_SIZE)), ""
    if not isinstance(model.system, (Step, Sample)):
        return [], ""
    generator = torch.Generator().manual_seed(0)
    samples = sample_sequences(
        model.system, SAMPLE_SIZE, max_length=MAX_SENTENCE_TOKENS, generator=generator
    )
    note = "The training corpus of the run is missing, so these are texts that it generated itself."
    return [Example(text=model.tokenizer.decode(sample.tokens)) for sample in samples], note


def _counts(model: TrainedModel, corpus: Corpus | None) -> Counter[int]:
    if corpus is None or corpus.layout.kind == "pairs":
        return Counter()
    texts = [example.text for example in islice(corpus.split("train"), COUNTED_TEXTS)]
    return Counter(token for ids in model.tokenizer.encode_batch(texts) for token in ids)
