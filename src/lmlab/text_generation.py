"""Text generation by a trained model: sampling, MCMC, mask filling, translation, answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lmlab.core.batch import Batch
from lmlab.core.card import Card
from lmlab.core.errors import UserError, unknown_name
from lmlab.core.limits import check_limit
from lmlab.core.untrusted_input import (
    check_seed,
    check_text,
    check_texts,
    check_whole_number,
    checked_texts,
)
from lmlab.inference.decoding import GeneratedSequence
from lmlab.interop.load_model import load_model
from lmlab.sampling.beam_search import BeamConfig, beam_search
from lmlab.sampling.decoding import greedy_search, sample_sequences
from lmlab.sampling.filled_text import FilledText
from lmlab.sampling.mask_filling import MaskFiller
from lmlab.sampling.prompts import EncodedPrefix, encode_prefix, encode_source
from lmlab.sampling.translation import Translation, make_translator
from lmlab.shared_corpus import shared_corpus
from lmlab.training.run_folder import TrainedModel

if TYPE_CHECKING:
    from lmlab.retrieval.dense_index import DenseIndex
    from lmlab.retrieval.documents import Documents
    from lmlab.retrieval.stored_index import StoredIndex
    from lmlab.sampling.mcmc.diagnostics import McmcResult
    from lmlab.sampling.question_answering import AnsweredQuestion

DECODING_OPTIONS = {
    "ancestral": ("temperature", "top_k", "top_p"),
    "greedy": (),
    "beam": ("beam", "length_penalty"),
}
"""Decoding methods, and the options of each."""
MCMC_METHODS = ("gibbs", "metropolis")
"""MCMC methods, which have a method of their own (`chains`)."""
TOKENS_AT_ONCE = 2**16
"""Most tokens generated in one batch, which bounds memory."""
DEFAULT_BEAM_WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """A generated text."""

    text: str
    log_prob: float | None
    """Log-probability in nats after the prefix, untempered and untruncated; None if unknown."""
    tokens: int
    """Tokens generated after the prefix, including the end token if generated."""
    finished: bool
    """Whether the model generated the end token; else the maximum length cut it off."""


class TextGenerator:
    """A trained model that generates, fills, translates and answers."""

    def __init__(self, model: TrainedModel) -> None:
        self.model = model

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.card.name}, {str(self.path)!r})"

    @property
    def card(self) -> Card:
        """The system's card: paper, source, kind, capabilities."""
        return self.model.card

    @property
    def config(self) -> dict[str, Any]:
        """The run's config.json."""
        return self.model.config

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.model.path

    @property
    def system(self) -> Any:
        """The torch module, in evaluation mode."""
        return self.model.system

    @property
    def tokenizer(self) -> Any:
        """The tokenizer: text to ids and back."""
        return self.model.tokenizer

    def encode_prefix(self, text: str) -> EncodedPrefix:
        """The input ids of a prefix, and its unknown words."""
        return encode_prefix(text, self.tokenizer)

    def sample(
        self,
        n: int = 1,
        *,
        prefix: str = "",
        source: str | None = None,
        method: str = "ancestral",
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        beam: int | None = None,
        length_penalty: float | None = None,
        max_length: int = 100,
        seed: int = 0,
    ) -> list[GeneratedText]:
        """Generate `n` texts by ancestral sampling, greedy decoding or beam search.

        Beam search gives its n best. The same seed gives the same texts. `source` is what a
        conditional model (a translator) is conditioned on.

        >>> model = lmlab.load("runs/ngram")
        >>> model.sample(3, seed=0) == model.sample(3, seed=0)
        True
        >>> first, second = model.sample(2, method="beam", beam=8)
        >>> first.log_prob >= second.log_prob
        True
        """
        if method in MCMC_METHODS:
            raise UserError(f"MCMC returns a record; call chains(n, method={method!r}).")
        if method not in DECODING_OPTIONS:
            raise unknown_name("method", method, (*DECODING_OPTIONS, *MCMC_METHODS))
        check_seed(seed)
        check_whole_number("the number of texts", n)
        check_whole_number("the greatest length", max_length)
        check_limit("texts", n, called="the number of texts")
        check_limit("length", max_length, called="the greatest length")
        all_options = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "beam": beam,
            "length_penalty": length_penalty,
        }
        options = {name: value for name, value in all_options.items() if value is not None}
        for name in options:
            if name not in DECODING_OPTIONS[method]:
                raise UserError(
                    f"{name.replace('_', '-')} does not apply to the method {method}; remove it."
                )
        ids = list(self.encode_prefix(check_text(prefix, "the prefix")).ids)
        condition = self._source_batch(source)
        generated = self._generate(n, method, ids, condition, max_length, seed, options)
        return [self._generated_text(sequence) for sequence in generated]

    def chains(
        self,
        n: int = 1,
        *,
        lm: Path | str | TextGenerator | None = None,
        progress: Callable[[int, int], None] = lambda done, of: None,
        **options: Any,
    ) -> McmcResult:
        """Sample texts by MCMC (gibbs, metropolis), with convergence diagnostics.

        `options` are those of `lmlab.sampling.mcmc.mcmc_config.McmcConfig`: method, start, text,
        template, prefix, length, steps, masks, order, temperature, energy … `lm` gives the samples
        for start="lm", default this model. For systems with `Fill` or `Energy`.

        >>> _ = lmlab.train(
        ...     "hmm", data="grammar", out="runs/states", size="tiny", steps=2, quiet=True
        ... )
        >>> result = lmlab.load("runs/states").chains(
        ...     2, method="metropolis", template="the <mask> sleeps", steps=40
        ... )
        >>> [text.text.startswith("the ") for text in result.texts], result.energy
        ([True, True], 'own')
        """
        from lmlab.sampling.mcmc.mcmc_config import McmcConfig
        from lmlab.sampling.mcmc.sampler import McmcSampler

        config = McmcConfig(n=n, **options)
        if lm is not None and config.start != "lm":
            raise UserError(
                "lm is the model whose samples chains start from; give --start lm with it."
            )
        lm_model = None
        if lm is not None:
            lm_model = lm.model if isinstance(lm, TextGenerator) else load_model(lm)
        sampler = McmcSampler(
            self.system,
            self.tokenizer,
            self.model.layout,
            config,
            corpus_texts=lambda: shared_corpus([self.model], None, None).split("train").texts(),
            lm=None if lm_model is None else (lm_model.system, lm_model.tokenizer),
        )
        return sampler.run(progress)

    def fill(self, texts: Sequence[str], **options: Any) -> list[FilledText]:
        """Fill each `<mask>` or `[MASK]` of the texts; options as of `fill_stream`.

        >>> _ = lmlab.train(
        ...     "hmm", data="grammar", out="runs/hmm", size="tiny", steps=2, quiet=True
        ... )
        >>> [filled] = lmlab.load("runs/hmm").fill(["the <mask> sleeps"], top=3)
        >>> [option.probability > 0 for option in filled.masks[0].options]
        [True, True, True]
        """
        check_texts(texts, "fill")
        return list(self.fill_stream(texts, **options))

    def fill_stream(
        self,
        texts: Iterable[str],
        *,
        joint: bool = False,
        blanks: bool = False,
        among: Sequence[str] = (),
        seed: int | None = None,
        **options: Any,
    ) -> Iterator[FilledText]:
        """Fill the masks of a stream of texts, one by one, in constant memory.

        The most probable tokens of each mask alone, or of all masks jointly (`joint`); for systems
        with `Infill`, blanks of any length (`blanks`, or if the system has no `Fill`), sampled if a
        seed is given. `among` restricts the candidates. `options`: `top`, `beam`, `max_length`.
        """
        generator = None if seed is None else torch.Generator().manual_seed(check_seed(seed))
        model = self.model
        filler = MaskFiller(
            system=model.system, tokenizer=model.tokenizer, layout=model.layout, **options
        )
        return filler.fill(
            checked_texts(texts), joint=joint, blanks=blanks, among=among, generator=generator
        )

    def translate(self, texts: Sequence[str], **options: Any) -> list[Translation]:
        """Translate texts; options as of `lmlab translate`.

        >>> _ = open("pairs.tsv", "w").write("eins\\tone\\nzwei\\ttwo\\n" * 50)
        >>> _ = lmlab.train("seq2seq", data="pairs.tsv", out="runs/seq2seq", size="tiny",
        ...                 settings={"learning_rate": 0.02}, epochs=100, quiet=True)
        >>> [text.text for text in lmlab.load("runs/seq2seq").translate(["zwei", "eins"])]
        ['two', 'one']
        """
        check_texts(texts, "translate")
        return list(self.translate_stream([texts], **options))

    def translate_stream(
        self, chunks: Iterable[Sequence[str]], **options: Any
    ) -> Iterator[Translation]:
        """Translate chunks of texts lazily, in order."""
        if not self.card.conditional:
            raise UserError(
                f"{self.card.name} does not condition on a source; translation needs a system "
                "that does (seq2seq, seq2seq-attention, transformer …)."
            )
        model = self.model
        translator = make_translator(
            model.system, model.tokenizer, model.effective_source_tokenizer, **options
        )
        return translator.translate(list(checked_texts(chunk)) for chunk in chunks)

    def ask(
        self,
        questions: Sequence[str],
        *,
        documents: str | Path | Documents | StoredIndex | None = None,
        knowledge: str | Path | None = None,
        facts: Sequence[tuple[str, str, str]] = (),
        **options: Any,
    ) -> list[AnsweredQuestion]:
        """Answer questions, with evidence; for systems with `Ask`.

        `documents` replace the run's own for retrieval: a built-in set, a file, a folder,
        `Documents`, or an index, whose vectors are reused if this model made them. For a fact
        memory (FaE), `knowledge` has other facts about the same entities, and `facts` are edits
        (subject, relation, object). `options`: `answers` (number per question), and for systems
        that generate answers `method` (RAG: thorough, fast, beam, greedy, sample), `beam`,
        `max_length`, `seed`.

        >>> _ = lmlab.train("rag-token", data="capitals-questions", out="runs/rag", size="tiny",
        ...                 settings={"retriever_width": 512}, steps=2, quiet=True)
        >>> model = lmlab.load("runs/rag")
        >>> [answered] = model.ask(["what is the capital of Chad ?"], method="greedy")
        >>> answered.answers[0].evidence[0].text
        "the capital of Chad is N'Djamena"
        """
        check_texts(questions, "ask", noun="question")
        return list(
            self.ask_stream(
                [questions], documents=documents, knowledge=knowledge, facts=facts, **options
            )
        )

    def ask_stream(
        self,
        chunks: Iterable[Sequence[str]],
        *,
        documents: str | Path | Documents | StoredIndex | None = None,
        knowledge: str | Path | None = None,
        facts: Sequence[tuple[str, str, str]] = (),
        **options: Any,
    ) -> Iterator[AnsweredQuestion]:
        """Answer chunks of questions lazily, in order."""
        from lmlab.core.answers import Ask
        from lmlab.core.protocols import require
        from lmlab.sampling.question_answering import QuestionAnswerer, with_documents, with_facts

        system = self.model.system
        require(system, Ask, "asking")
        if documents is not None:
            system = with_documents(system, *self._resolve_documents(documents))
        if knowledge is not None or facts:
            system = with_facts(system, knowledge, facts)
        return QuestionAnswerer(system=system, tokenizer=self.model.tokenizer, **options).ask(
            chunks
        )

    def _resolve_documents(
        self, documents: str | Path | Documents | StoredIndex
    ) -> tuple[Documents, torch.Tensor | None, DenseIndex | None]:
        """The documents; their vectors if this model made them; and their index if approximate."""
        from lmlab.interop.text_encoders import vectors_of_model
        from lmlab.retrieval.documents import BUILTIN_DOCUMENTS, Documents, load_documents
        from lmlab.retrieval.stored_index import StoredIndex, is_index, open_index

        if isinstance(documents, Documents):
            return documents, None, None
        if not isinstance(documents, StoredIndex):
            if str(documents) in BUILTIN_DOCUMENTS or not is_index(documents):
                return load_documents(documents), None, None
            documents = open_index(documents)
        vectors = vectors_of_model(documents, self.model)
        if vectors is None:
            return documents.documents, None, None
        index = None if documents.about.kind == "flat" else documents.vectors
        return documents.documents, torch.tensor(vectors), index

    def _source_batch(self, source: str | None) -> Batch | None:
        """The source as a batch of one row; a UserError if the model does not take one."""
        card, task = self.card, self.config.get("task", {})
        if source is not None:
            if not card.conditional:
                raise UserError(f"{card.name} does not condition on a source; remove it.")
            return encode_source(source, self.model.effective_source_tokenizer, self.system)
        if card.conditional and (self.model.layout.kind == "pairs" or task.get("head") is False):
            raise UserError(
                f"this {card.name} was trained to generate given a source, got none; give one "
                "by --source, or many to lmlab translate."
            )
        return None

    def _generate(
        self,
        n: int,
        method: str,
        prefix: list[int],
        condition: Batch | None,
        max_length: int,
        seed: int,
        options: dict[str, Any],
    ) -> Iterator[GeneratedSequence]:
        inputs: dict[str, Any] = {"prefix": prefix, "condition": condition}
        if method == "beam":
            # The same beam width for any n, or the best text would depend on n.
            width = options.pop("beam", DEFAULT_BEAM_WIDTH)
            beam = BeamConfig(width=width, best=n, max_length=max_length, **options)
            yield from beam_search(self.system, beam, **inputs)[0]
            return
        generator = torch.Generator().manual_seed(seed)
        batch_size = max(1, TOKENS_AT_ONCE // max_length)
        for first in range(0, n, batch_size):
            rows = min(batch_size, n - first)
            if condition is not None:
                inputs["condition"] = condition.select(torch.zeros(rows, dtype=torch.long))
            if method == "greedy":
                yield from greedy_search(self.system, rows, max_length=max_length, **inputs)
            else:
                sampling = {"generator": generator, **inputs, **options}
                yield from sample_sequences(self.system, rows, max_length=max_length, **sampling)

    def _generated_text(self, sequence: GeneratedSequence) -> GeneratedText:
        return GeneratedText(
            text=self.tokenizer.decode(sequence.tokens),
            log_prob=sequence.log_prob,
            tokens=len(sequence.tokens) - sequence.given + sequence.finished,
            finished=sequence.finished,
        )
