"""What is looked at: a run, a few sentences by token, and texts of its corpus to average over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from lmlab.core.batch import Batch
from lmlab.core.errors import UserError
from lmlab.core.evaluation_mode import evaluating
from lmlab.core.protocols import LogProb, Sample, Step
from lmlab.core.system import System
from lmlab.data.corpus import Corpus, open_corpus
from lmlab.data.corpus_encoding import frame, framed
from lmlab.data.readers import Example
from lmlab.sampling.decoding import sample
from lmlab.training.reporting import read_metrics
from lmlab.training.run_folder import (
    Model,
    RunFolder,
)

SENTENCES = 3
"""Sentences shown where none are given."""
SHORTEST, LONGEST = 5, 25
"""Tokens of a sentence that is chosen to be shown."""
SAMPLED = 96
"""Texts that averages are taken over."""
COUNTED = 4000
"""Texts whose words are counted."""


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A text as a model reads it."""

    text: str
    ids: tuple[int, ...]
    """With the opening symbol first, and the end where the model predicts it."""
    tokens: tuple[str, ...]
    """As they are spelled."""
    condition: str | None = None
    """What it is given, where it is given something: a translator's source."""
    given: tuple[int, ...] = ()
    """The ids of that."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A run that is looked at."""

    name: str
    model: Model
    sentences: tuple[Sentence, ...]
    """Those that are shown."""
    sample: tuple[Sentence, ...]
    """Those that averages are taken over, the shown ones not among them."""
    counts: Counter[int] = field(default_factory=Counter)
    """How often each token occurs in some training texts; empty where they are gone."""
    metrics: tuple[dict[str, Any], ...] = ()
    remark: str = ""
    """What the person should know of where the sentences come from."""

    @property
    def system(self) -> System:
        return self.model.system

    def token(self, id: int) -> str:
        """The text of an id."""
        return self.model.tokenizer.token(id)


def make_subjects(models: Sequence[Model], texts: Sequence[str] = ()) -> list[Subject]:
    """The runs with the same sentences: those given, or some of the first run's own texts."""
    for text in texts:
        if not text.strip():
            raise UserError("a text to inspect must hold a word, and an empty one came.")
    examples = [Example(text=text) for text in texts]
    if not texts and len(models) > 1:
        pool = [_example(each) for each in _pool(models[0], corpus_of(models[0]))[0]]
        able = [each for each in pool if all(fits(m, _sentence(m, each)) for m in models)]
        examples = [_example(each) for each in choose([_sentence(models[0], e) for e in able])]
    return [
        _make_subject(model, examples, name=name)
        for model, name in zip(models, _names(models), strict=True)
    ]


def _names(models: Sequence[Model]) -> list[str]:
    """The folders' names; whole paths where two share theirs."""
    names = [model.name for model in models]
    return [model.name if names.count(model.name) == 1 else str(model.path) for model in models]


def make_subject(model: Model, texts: Sequence[str] = (), *, name: str = "") -> Subject:
    """Gather what is looked at of a run; without texts, some of its own corpus, or its samples."""
    return _make_subject(model, [Example(text=text) for text in texts], name=name)


def _make_subject(model: Model, examples: Sequence[Example], *, name: str) -> Subject:
    corpus = corpus_of(model)
    pool, remark = _pool(model, corpus)
    unmet = _meet_tokenizer(model)
    given = [_sentence(model, example) for example in examples]
    for each in given:
        model.system.check_length(len(each.ids))
    chosen = given or choose(pool)
    if not chosen:
        raise UserError(
            f"what {model.path} was trained on is gone, and the model writes no text by itself; "
            "give one by --text (in Python texts=)."
        )
    return Subject(
        name=name or model.name,
        model=model,
        sentences=tuple(chosen),
        sample=tuple(each for each in pool if each not in chosen)[:SAMPLED],
        counts=_counts(model, corpus),
        metrics=tuple(read_metrics(RunFolder(model.path).metrics)),
        remark=" ".join(filter(None, ("" if given else remark, unmet))),
    )


def _meet_tokenizer(model: Model) -> str:
    """Tell the system what its tokens look like, for views of whole words; a remark if it fails.

    Not told when a run is loaded: reading a lexicon takes seconds, and scoring needs none.
    """
    try:
        model.system.meet_tokenizer(model.tokenizer)
    except UserError as error:
        return f"Views of {model.name} show single tokens where it hides names: {error}"
    return ""


def corpus_of(model: Model) -> Corpus | None:
    """What the run was trained on, if it is still there and the same."""
    trained_on = model.config["corpus"]
    if not trained_on["spec"]:
        return None
    how = trained_on.get("errors", "strict")
    try:
        corpus = open_corpus(trained_on["spec"], errors=how, seed=trained_on["seed"])
        return corpus if corpus.fingerprint() == trained_on["fingerprint"] else None
    except UserError:
        return None


def sentence_of(model: Model, text: str, condition: str | None = None) -> Sentence:
    """A text by token, framed as the run was trained, and what it is given."""
    _, tail = frame(model.tokenizer.vocabulary, model.layout)
    ids = [model.system.vocabulary.opening, *model.tokenizer.encode(text), *tail]
    ids = ids[: model.layout.cut]
    given = () if condition is None else framed(model.reads_by, condition)
    tokens = tuple(map(model.tokenizer.token, ids))
    return Sentence(text=text, ids=tuple(ids), tokens=tokens, condition=condition, given=given)


def _sentence(model: Model, example: Example) -> Sentence:
    given = example.condition if model.card.conditional else None
    return sentence_of(model, example.text, given)


def _example(sentence: Sentence) -> Example:
    return Example(text=sentence.text, condition=sentence.condition)


def fits(model: Model, sentence: Sentence) -> bool:
    """Whether the system can read it at once."""
    try:
        model.system.check_length(len(sentence.ids))
    except UserError:
        return False
    return len(sentence.ids) > 1


def choose(pool: Sequence[Sentence]) -> list[Sentence]:
    """The first few that are neither very short nor very long; else the first few there are."""
    fitting = [each for each in pool if SHORTEST <= len(each.ids) <= LONGEST]
    return list((fitting or list(pool))[:SENTENCES])


def table_name(parameter: str) -> str:
    """`backbone.embedding.weight` as `embedding`: the table of vectors as a person calls it."""
    return parameter.removesuffix(".weight").removeprefix("backbone.")


def batches_of(system: System, sentences: Sequence[Sentence]) -> list[Batch]:
    """A batch for each length, so that nothing is padded, shortest first."""
    by_length: dict[int, list[Sentence]] = {}
    for sentence in sentences:
        by_length.setdefault(len(sentence.ids), []).append(sentence)
    return [batch_of(system, by_length[length]) for length in sorted(by_length)]


def batch_of(system: System, sentences: Sequence[Sentence]) -> Batch:
    """Sentences as one batch, padded at the end, with what they are given if all are."""
    pad, condition = system.vocabulary.pad, None
    if all(each.given for each in sentences):
        condition = Batch.from_sequences([each.given for each in sentences], pad=pad)
    return Batch.from_sequences([each.ids for each in sentences], pad=pad, condition=condition)


def _pool(model: Model, corpus: Corpus | None) -> tuple[list[Sentence], str]:
    """Sentences of the run's own that it can read, and a remark on where they come from."""
    drawn, remark = _own_texts(model, corpus)
    found = [_sentence(model, each) for each in dict.fromkeys(drawn) if each.text.strip()]
    longest = _longest_read(model, [each for each in found if fits(model, each)])
    return [each for each in found if len(each.ids) <= longest and fits(model, each)], remark


def _longest_read(model: Model, sentences: Sequence[Sentence]) -> int:
    """The length of the longest of these that the system reads: some say no only when asked."""
    by_length = {len(each.ids): each for each in sentences}
    for length in sorted(by_length, reverse=True):
        try:
            with evaluating(model.system):
                if isinstance(model.system, LogProb):
                    generator = torch.Generator().manual_seed(0)
                    batch = batch_of(model.system, [by_length[length]])
                    model.system.log_prob(batch, generator=generator)
            return length
        except UserError:
            continue
    return 0


def _own_texts(model: Model, corpus: Corpus | None) -> tuple[list[Example], str]:
    if corpus is not None and (corpus.layout.kind != "pairs" or model.card.conditional):
        return list(corpus.split("validation").first(4 * SAMPLED)), ""
    if not isinstance(model.system, (Step, Sample)):
        return [], ""
    generator = torch.Generator().manual_seed(0)
    written = sample(model.system, SAMPLED, max_length=LONGEST, generator=generator)
    remark = "What the run was trained on is gone, so these are texts that it wrote itself."
    return [Example(text=model.tokenizer.decode(each.tokens)) for each in written], remark


def _counts(model: Model, corpus: Corpus | None) -> Counter[int]:
    if corpus is None or corpus.layout.kind == "pairs":
        return Counter()
    texts = [example.text for example in islice(corpus.split("train"), COUNTED)]
    return Counter(token for ids in model.tokenizer.encode_batch(texts) for token in ids)
