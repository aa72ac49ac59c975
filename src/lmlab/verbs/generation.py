"""Verbs that generate text: sample (and MCMC chains), fill, translate and evaluate, ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lmlab.core.errors import UserError
from lmlab.core.notebook import Records
from lmlab.core.options import Option, as_keywords, collects, collects_chunks, takes
from lmlab.core.shared_options import RunErrors, no_progress
from lmlab.sampling.generation_options import (
    AnswerOptions,
    EvaluationOptions,
    FillLimits,
    SampleOptions,
    TranslateOptions,
)
from lmlab.sampling.mcmc.mcmc_config import McmcConfig, option

if TYPE_CHECKING:
    import torch

    from lmlab.retrieval.dense_index import DenseIndex
    from lmlab.retrieval.documents import Documents
    from lmlab.retrieval.stored_index import StoredIndex
    from lmlab.sampling.filled_text import FilledText
    from lmlab.sampling.mcmc.diagnostics import McmcResult
    from lmlab.sampling.question_answering import AnsweredQuestion
    from lmlab.sampling.text_sampling import GeneratedText
    from lmlab.sampling.translation import Translation
    from lmlab.sampling.translation_evaluation import TranslationEvaluation
    from lmlab.verbs.language_model import LanguageModel
    from lmlab.verbs.loading import GivenModel


@takes(SampleOptions)
def sample(model: LanguageModel, options: SampleOptions) -> Records[GeneratedText]:
    """Generate texts, one per line; masked and energy models are sampled by MCMC.

    In Python MCMC is the method `chains`. Beam search gives its n best texts. The same seed gives
    the same texts. `source` is what a conditional model (a translator) is conditioned on.

    >>> model = lmlab.load("runs/ngram")
    >>> model.sample(3, seed=0) == model.sample(3, seed=0)
    True
    >>> first, second = model.sample(2, method="beam", beam=8)
    >>> first.log_prob >= second.log_prob
    True
    """
    from lmlab.sampling.text_sampling import sample_texts

    return Records(sample_texts(model.model, **as_keywords(options)))


@dataclass(frozen=True, kw_only=True)
class ChainOptions(McmcConfig):
    """Settings of MCMC, and the model whose samples chains start from."""

    lm: Annotated[
        Path | str | LanguageModel | None,
        option(
            "Model that --start lm samples from.",
            metavar="RUN",
            show_default="the run itself if it generates",
        ),
    ] = None
    progress: Callable[[int, int], None] = no_progress
    """Called with the steps made and their number."""


@takes(ChainOptions)
def chains(model: LanguageModel, options: ChainOptions) -> McmcResult:
    """Sample texts by MCMC (gibbs, metropolis), with convergence diagnostics.

    For systems with `Fill` or `Energy`.

    >>> _ = lmlab.train(
    ...     "hmm", data="grammar", out="runs/states", size="tiny", steps=2, quiet=True
    ... )
    >>> result = lmlab.load("runs/states").chains(
    ...     2, method="metropolis", template="the <mask> sleeps", steps=40
    ... )
    >>> [text.text.startswith("the ") for text in result.texts], result.energy
    ([True, True], 'own')
    """
    from lmlab.sampling.mcmc.sampler import McmcSampler
    from lmlab.verbs.loading import shared_corpus, trained_model

    if options.lm is not None and options.start != "lm":
        raise UserError("lm is the model whose samples chains start from; give --start lm with it.")
    lm = None if options.lm is None else trained_model(options.lm)
    trained = model.model
    sampler = McmcSampler(
        trained.system,
        trained.tokenizer,
        trained.layout,
        McmcConfig(**as_keywords(options, McmcConfig)),
        corpus_texts=lambda: shared_corpus([trained], None, None).split("train").texts(),
        lm=None if lm is None else (lm.system, lm.tokenizer),
    )
    return sampler.run(options.progress)


@dataclass(frozen=True, kw_only=True)
class FillOptions(FillLimits):
    """What is filled, and how."""

    joint: Annotated[bool, Option("Fill all masks of a text jointly.")] = False
    blanks: Annotated[
        bool, Option("Fill blanks of any length; the default where a system has no other method.")
    ] = False
    among: Annotated[
        Sequence[str], Option("Score only this candidate; repeatable: a cloze.", metavar="T")
    ] = ()
    sample: Annotated[bool, Option("Sample instead of search: blanks, or tokens with --joint.")] = (
        False
    )
    seed: Annotated[int, Option("Random seed of --sample.")] = 0


@takes(FillOptions)
def fill_stream(
    model: LanguageModel, texts: Iterable[str], options: FillOptions
) -> Iterator[FilledText]:
    """Fill the masks of a stream of texts, one by one, in constant memory."""
    import torch

    from lmlab.core.untrusted_input import check_seed, checked_texts
    from lmlab.sampling.mask_filling import MaskFiller

    trained = model.model
    filler = MaskFiller(
        system=trained.system,
        tokenizer=trained.tokenizer,
        layout=trained.layout,
        **as_keywords(options, FillLimits),
    )
    generator = None
    if options.sample:
        generator = torch.Generator().manual_seed(check_seed(options.seed))
    return filler.fill(
        checked_texts(texts),
        joint=options.joint,
        blanks=options.blanks,
        among=options.among,
        generator=generator,
    )


@collects(fill_stream)
def fill() -> None:
    """Fill masks: the most probable tokens at each mask, or blanks of any length.

    Each `<mask>` or `[MASK]` of a text is filled alone, or all jointly (`joint`); for systems with
    `Infill`, blanks of any length (`blanks`, or if the system has no `Fill`). `among` restricts
    the candidates.

    >>> _ = lmlab.train(
    ...     "hmm", data="grammar", out="runs/hmm", size="tiny", steps=2, quiet=True
    ... )
    >>> [filled] = lmlab.load("runs/hmm").fill(["the <mask> sleeps"], top=3)
    >>> [option.probability > 0 for option in filled.masks[0].options]
    [True, True, True]
    """


@takes(TranslateOptions)
def translate_stream(
    model: LanguageModel, chunks: Iterable[Sequence[str]], options: TranslateOptions
) -> Iterator[Translation]:
    """Translate chunks of texts lazily, in order."""
    from lmlab.core.untrusted_input import checked_texts
    from lmlab.sampling.translation import make_translator

    if not model.card.conditional:
        raise UserError(
            f"{model.card.name} does not condition on a source; translation needs a system "
            "that does (seq2seq, seq2seq-attention, transformer …)."
        )
    trained = model.model
    translator = make_translator(
        trained.system,
        trained.tokenizer,
        trained.effective_source_tokenizer,
        **as_keywords(options),
    )
    return translator.translate(list(checked_texts(chunk)) for chunk in chunks)


@collects_chunks(translate_stream)
def translate() -> None:
    """Translate texts, one per line, in order; empty lines stay empty.

    >>> _ = open("pairs.tsv", "w").write("eins\\tone\\nzwei\\ttwo\\n" * 50)
    >>> _ = lmlab.train("seq2seq", data="pairs.tsv", out="runs/seq2seq", size="tiny",
    ...                 settings={"learning_rate": 0.02}, epochs=100, quiet=True)
    >>> [text.text for text in lmlab.load("runs/seq2seq").translate(["zwei", "eins"])]
    ['two', 'one']
    """


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(EvaluationOptions):
    """The corpus that translators are evaluated on, and how."""

    data: Annotated[
        str | Path | None,
        Option("Parallel corpus.", metavar="CORPUS", show_default="the runs' own"),
    ] = None
    errors: RunErrors = None


@takes(EvaluateOptions)
def evaluate(runs: Sequence[GivenModel], options: EvaluateOptions) -> TranslationEvaluation:
    """Evaluate translations by BLEU and chrF (sacreBLEU), with intervals and paired tests.

    All runs translate the same texts of a parallel corpus; the first is the baseline of the tests.
    """
    from lmlab.data.lines import check_errors
    from lmlab.sampling.translation_evaluation import evaluate_translators
    from lmlab.scoring.minimal_pairs import unique_model_names
    from lmlab.tasks.finetune import evaluation_corpus
    from lmlab.verbs.loading import check_list, shared_corpus, trained_models

    check_list(runs, "evaluate")
    if options.errors is not None:
        check_errors(options.errors)
    models = trained_models(runs)
    data = None if options.data is None else str(options.data)
    corpus = evaluation_corpus(
        models, data, lambda subset: shared_corpus(subset, data, options.errors)
    )
    chosen = as_keywords(options, EvaluationOptions)
    names = unique_model_names([model.path for model in models])
    return evaluate_translators(dict(zip(names, models, strict=True)), corpus, **chosen)


Fact = tuple[str, str, str]


def parse_facts(facts: Sequence[str]) -> list[Fact]:
    """Parse each 'SUBJECT | RELATION | OBJECT'."""
    return [_parse_fact(fact) for fact in facts]


def _parse_fact(text: str) -> Fact:
    parts = [part.strip() for part in text.split("|")]
    if len(parts) != 3 or not all(parts):
        raise UserError(f"a fact is written 'SUBJECT | RELATION | OBJECT', and {text!r} is not.")
    return parts[0], parts[1], parts[2]


@dataclass(frozen=True, kw_only=True)
class AskOptions(AnswerOptions):
    """How answers are generated, and from which documents or facts."""

    documents: Annotated[
        str | Path | Documents | StoredIndex | None,
        Option(
            "Documents to retrieve from: a built-in set (capitals, wordnet), a .jsonl file, a text "
            "file with one document per line, a folder.",
            metavar="DOCS",
            show_default="the run's own",
        ),
    ] = None
    knowledge: Annotated[
        str | Path | None,
        Option(
            "Other facts about the same entities, for a memory of facts: a built-in knowledge or a "
            "folder of tables.",
            metavar="KNOWLEDGE",
            show_default="the run's own",
        ),
    ] = None
    facts: Annotated[
        Sequence[Fact],
        Option(
            "A fact to change in the memory before answering; repeatable.",
            flag="--fact",
            metavar="'SUBJECT | RELATION | OBJECT'",
            parse=parse_facts,
            repeats=True,
        ),
    ] = ()


@takes(AskOptions)
def ask_stream(
    model: LanguageModel, chunks: Iterable[Sequence[str]], options: AskOptions
) -> Iterator[AnsweredQuestion]:
    """Answer chunks of questions lazily, in order."""
    from lmlab.core.answers import Ask
    from lmlab.core.protocols import require
    from lmlab.sampling.question_answering import QuestionAnswerer, with_documents, with_facts

    system = model.model.system
    require(system, Ask, "asking")
    if options.documents is not None:
        system = with_documents(system, *_resolve_documents(model, options.documents))
    if options.knowledge is not None or options.facts:
        knowledge = None if options.knowledge is None else str(options.knowledge)
        system = with_facts(system, knowledge, options.facts)
    answerer = QuestionAnswerer(
        system=require(system, Ask, "asking"),
        tokenizer=model.tokenizer,
        **as_keywords(options, AnswerOptions),
    )
    return answerer.ask(chunks)


@collects_chunks(ask_stream)
def ask() -> None:
    """Answer questions, with probabilities and optionally the evidence.

    For systems with `Ask`. `documents` replace the run's own for retrieval: also `Documents`, or an
    index, whose vectors are reused if this model made them. For a fact memory (FaE), `knowledge`
    has other facts about the same entities, and `facts` are edits (subject, relation, object).

    >>> _ = lmlab.train("rag-token", data="capitals-questions", out="runs/rag", size="tiny",
    ...                 settings={"retriever_width": 512}, steps=2, quiet=True)
    >>> model = lmlab.load("runs/rag")
    >>> [answered] = model.ask(["what is the capital of Chad ?"], method="greedy")
    >>> answered.answers[0].evidence[0].text
    "the capital of Chad is N'Djamena"
    """


def _resolve_documents(
    model: LanguageModel, documents: str | Path | Documents | StoredIndex
) -> tuple[Documents, torch.Tensor | None, DenseIndex | None]:
    """The documents; their vectors if this model made them; and their index if approximate."""
    import torch

    from lmlab.interop.text_encoders import vectors_of_model
    from lmlab.retrieval.documents import BUILTIN_DOCUMENTS, Documents, load_documents
    from lmlab.retrieval.stored_index import StoredIndex, is_index, open_index

    if isinstance(documents, Documents):
        return documents, None, None
    if not isinstance(documents, StoredIndex):
        if str(documents) in BUILTIN_DOCUMENTS or not is_index(documents):
            return load_documents(documents), None, None
        documents = open_index(documents)
    vectors = vectors_of_model(documents, model.model)
    if vectors is None:
        return documents.documents, None, None
    index = None if documents.about.kind == "flat" else documents.vectors
    return documents.documents, torch.tensor(vectors), index
